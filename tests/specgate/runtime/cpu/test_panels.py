"""A product over panels is torch's own, for every shape, and a row's bits do not depend on who shares its call."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.packing import panels_of
from specgate.runtime.cpu.panels import linear, looked_up, pack
from specgate.runtime.engine.graph_check import add_cpu_graphs
from specgate.runtime.scheduler import Rows
from specgate.runtime.stored_weights import Codes
from tests.support.models import make_runner, quiet, write_model

BEST = cpu_library.instruction_set()
SETS = [BEST, InstructionSet.AVX2] if BEST is InstructionSet.AVX512 else [BEST]
INPUTS, OUTPUTS, ROWS = (1, 2, 37), (1, 15, 16, 17, 129), (0, 1, 5, 12, 13, 17, 64, 300)
LARGE = (1030, 257)
"""Enough multiply-adds for several threads; whole blocks of rows and panels, and parts of one."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("in_features", INPUTS)
@pytest.mark.parametrize("out_features", OUTPUTS)
def test_equals_the_plain_product(out_features: int, in_features: int, has_bias: bool, dtype: torch.dtype) -> None:
    weight = drawn(out_features, in_features, dtype=dtype)
    bias = 10 * drawn(out_features, dtype=dtype) if has_bias else None
    packed = pack(weight, bias)
    for num_rows in ROWS:
        rows = drawn(num_rows, in_features)
        expected = F.linear(rows.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(linear(packed, rows).double(), expected, rtol=1e-6, atol=1e-6 * in_features)


def test_bfloat16_gives_the_bits_of_the_same_numbers_in_float32() -> None:
    for out_features in OUTPUTS:
        for in_features in INPUTS:
            weight, rows = drawn(out_features, in_features, dtype=torch.bfloat16), drawn(13, in_features)
            assert torch.equal(linear(pack(weight), rows), linear(pack(weight.float()), rows))


def codes(out_features: int, bits: int, block: int, has_offsets: bool) -> Codes:
    """Codes whose numbers are exact products, as those of files are."""
    random = torch.Generator().manual_seed(out_features * block)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    numbers = torch.randint(low, high, (out_features, 3 * block), generator=random, dtype=torch.int8)
    scales, offsets = drawn(out_features, 3).half().float(), drawn(3, out_features).half().float().t()
    return Codes(numbers, scales, offsets.contiguous() if has_offsets else None, bits)


@pytest.mark.parametrize(
    ("bits", "block", "has_offsets"), [(8, 32, False), (8, 16, False), (8, 32, True), (4, 32, True)]
)
@pytest.mark.parametrize("instructions", SETS)
def test_codes_give_the_bits_of_the_same_numbers_in_float32(
    instructions: InstructionSet, bits: int, block: int, has_offsets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CPU_KERNELS", instructions)
    native_calls.kernels.cache_clear()
    for out_features in OUTPUTS:
        weight = codes(out_features, bits, block, has_offsets)
        packed, rows = pack(weight), drawn(300, 3 * block)
        expected = linear(pack(weight.numbers()), rows)
        for num_rows in ROWS:
            assert torch.equal(linear(packed, rows[:num_rows]), expected[:num_rows])
        token_ids = torch.arange(out_features).view(1, -1)
        assert torch.equal(looked_up(packed, token_ids)[0], weight.numbers())
    native_calls.kernels.cache_clear()


def test_a_rows_bits_are_its_own() -> None:
    packed, rows = pack(drawn(*LARGE), drawn(LARGE[0])), drawn(300, LARGE[1])
    together = linear(packed, rows)
    for count in (*range(1, 26), 64):
        assert torch.equal(linear(packed, rows[:count]), together[:count]), count


def test_two_threads_give_the_bits_of_one() -> None:
    packed, rows = pack(drawn(*LARGE), drawn(LARGE[0])), drawn(300, LARGE[1])
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(linear(packed, rows))
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], F.linear(rows, drawn(*LARGE), drawn(LARGE[0])), rtol=1e-4, atol=1e-4)


def test_rows_and_weights_may_lie_anyhow() -> None:
    weight, rows = drawn(5, 32).t(), drawn(2, 3, 10)[..., :5]
    out = linear(pack(weight), rows)
    assert out.shape == (2, 3, 32)
    torch.testing.assert_close(out, F.linear(rows, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [24, 37])
def test_an_embedding_that_shares_panels_is_looked_up(width: int, dtype: torch.dtype) -> None:
    weight = drawn(61, width, dtype=dtype)
    token_ids = torch.tensor([[0, 15, 16], [17, 60, 5]])
    found = looked_up(pack(weight), token_ids)
    assert found.dtype is torch.float32
    assert torch.equal(found, F.embedding(token_ids, weight.float()))


def test_a_recorded_forward_holds_products_and_looks_up(tmp_path: Path) -> None:
    """Gemma is of another form than Llama's: its layers run one by one."""
    runner = make_runner(write_model(tmp_path, "gemma", tie_word_embeddings=True), 1024, 64)
    assert any(map(panels_of, runner.loaded.model.modules()))
    assert add_cpu_graphs(runner, quiet)
    sequence = runner.pool.open([7, 60, 3, 9, 16, 33], 6)
    runner.pool.extend(sequence, 6)
    found = []
    for use_graphs in (False, True):
        for start, num_rows in ((0, 3), (3, 2), (5, 1)):
            sequence.num_cached = start
            found += runner.forward([Rows(sequence, num_rows, num_rows)], use_graphs=use_graphs)
    assert all(torch.equal(plain, replayed) for plain, replayed in zip(found[:3], found[3:], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_no_rows_of_the_weight_are_refused(dtype: torch.dtype) -> None:
    packed = pack(torch.ones(4, 5, dtype=dtype))
    for rows in (torch.ones(2, 3), torch.ones(2, 7), torch.ones(2, 5, dtype=torch.float64)):
        with pytest.raises(ValueError, match="no float32 row"):
            linear(packed, rows)
