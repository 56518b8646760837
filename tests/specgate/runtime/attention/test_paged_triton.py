"""Our Triton kernel gives what the reference does: on a GPU, and without one in Triton's interpreter."""

import itertools
from typing import NamedTuple

import pytest
import torch

from specgate.runtime.attention.paged_triton import MAX_PARTS, TritonAttention, _num_parts
from specgate.runtime.attention.reference import varlen_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.triton


class Case(NamedTuple):
    """``rows`` and ``lengths`` of the sequences; ``left`` as in a window, -1 is none."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 256
    left: int = -1
    softcap: float | None = None
    columns: int = 4


CASES = {
    "ragged": Case((5, 1, 8, 1), (700, 3, 257, 900)),
    "lone rows": Case((1, 1, 1, 1), (700, 3, 257, 900)),
    "window": Case((5, 1, 8, 1), (700, 3, 257, 900), left=99),
    "window over parts": Case((3, 1), (1000, 300), left=700),
    "small pages": Case((5, 2), (70, 33), page_size=16, columns=8),
    "pages of 32": Case((5, 2), (200, 33), page_size=32, columns=8),
    "pages of 64, as many as keys in a block": Case((5, 2), (300, 64), page_size=64, columns=8),
    "pages of 128": Case((5, 2), (300, 129), page_size=128),
    "three query heads a key head": Case((6, 1), (513, 40), heads=9, kv_heads=3),
    "one key head": Case((2,), (300,), heads=8, kv_heads=1),
    "a width that is no power of two": Case((4, 1), (300, 20), head_dim=80),
    "narrow": Case((4, 1), (300, 20), head_dim=8),
    "a prompt": Case((200, 1), (333, 500)),
    "a prompt behind a window": Case((200, 1), (333, 500), left=40),
    "soft-cap": Case((5, 1), (700, 257), softcap=3.0),
    "a prompt with a soft-cap behind a window": Case((70, 1), (150, 40), left=30, softcap=3.0),
    "all at once": Case((1, 3), (600, 290), heads=9, kv_heads=3, page_size=16, left=400, softcap=3.0, columns=40),
    "rows before the first token": Case((6, 4), (2, 1)),
    "many parts": Case((2, 1), (3000, 5), columns=20),
}


def both(case: Case, dtype: torch.dtype, seed: int = 0, kernel: TritonAttention | None = None) -> list[torch.Tensor]:
    """Return what our kernel gives, and the reference."""
    generator = torch.Generator().manual_seed(seed)
    num_sequences = len(case.rows)
    table = torch.randperm(case.columns * num_sequences, generator=generator).reshape(num_sequences, case.columns)
    pool = (table.numel(), case.page_size, case.kv_heads, case.head_dim)
    # As a model hands it over: heads before rows.
    query = torch.randn(case.heads, sum(case.rows), case.head_dim, generator=generator).transpose(0, 1)
    keys, values = (torch.randn(pool, generator=generator) for _ in range(2))
    cu_seq_q = torch.tensor([0, *itertools.accumulate(case.rows)], dtype=torch.int32)
    query, keys, values = (x.to(DEVICE, dtype) for x in (query, keys, values))
    return [
        attention(
            query, keys, values, cu_seq_q.to(DEVICE), None, max(case.rows), case.columns * case.page_size, scale=0.125,
            window_size=(case.left, 0), enable_gqa=True, block_table=table.to(DEVICE, torch.int32),
            seqused_k=torch.tensor(case.lengths, dtype=torch.int32, device=DEVICE), num_splits=1, softcap=case.softcap,
        )
        for attention in (kernel or TritonAttention(DEVICE), varlen_attention)
    ]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_the_reference_gives(name: str) -> None:
    served, expected = both(CASES[name], torch.float32)
    torch.testing.assert_close(served, expected, rtol=1e-4, atol=1e-5)


def test_parts_are_put_together_anew_in_every_call() -> None:
    kernel = TritonAttention(DEVICE)
    for seed in range(3):
        served, expected = both(CASES["many parts"], torch.float32, seed, kernel)
        torch.testing.assert_close(served, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("programs", "max_k", "parts"),
    [((1, 2, 4), 1024, 4), ((1, 2, 1), 1 << 17, MAX_PARTS), ((1, 2, 1), 256, 1), ((5, 2, 4), 1024, 1)],
)
def test_keys_are_shared_out_where_rows_are_few(programs: tuple[int, int, int], max_k: int, parts: int) -> None:
    assert _num_parts(programs, max_k) == parts


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu_in_bfloat16(name: str) -> None:
    served, expected = (x.float() for x in both(CASES[name], torch.bfloat16))
    assert (served - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["ragged", "many parts", "a prompt"])
def test_on_a_gpu_in_other_number_formats(name: str, dtype: torch.dtype) -> None:
    served, expected = (x.float() for x in both(CASES[name], dtype))
    assert (served - expected).norm() <= (1e-4 if dtype is torch.float32 else 2e-2) * expected.norm()


@pytest.mark.gpu
def test_the_same_numbers_every_time() -> None:
    kernel = TritonAttention(DEVICE)
    first, _ = both(CASES["many parts"], torch.bfloat16, 0, kernel)
    assert all(torch.equal(both(CASES["many parts"], torch.bfloat16, 0, kernel)[0], first) for _ in range(20))
