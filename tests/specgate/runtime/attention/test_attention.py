"""Attention over pages equals attention written down; what is not computed is refused, not left out."""

from typing import Any

import pytest
import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import KVPages, paged_attention
from specgate.runtime.attention.paged_sdpa import PagedSdpaBatch, Span

HEADS, KV_HEADS, DIM = 4, 2, 8


class Layer(torch.nn.Module):
    """What an attention module shows of itself."""

    def __init__(self, layer_idx: int = 0) -> None:
        super().__init__()
        self.layer_idx = layer_idx


def by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int, softcap: float
) -> torch.Tensor:
    """Causal attention of the last rows, [heads, rows, dim], one row and one head at a time."""
    out = torch.empty_like(query)
    first = key.shape[1] - query.shape[1]
    for head in range(HEADS):
        shared = head * KV_HEADS // HEADS
        for row in range(query.shape[1]):
            seen = slice(max(0, first + row + 1 - window) if window else 0, first + row + 1)
            scores = key[shared, seen] @ query[head, row] * scale
            out[head, row] = (softcap * (scores / softcap).tanh()).softmax(0) @ value[shared, seen]
    return out


def random_rows(rows: int, heads: int, seed: int) -> torch.Tensor:
    return torch.randn(heads, rows, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("softcap", [None, 0.5, 3.0])
@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize(("page_size", "scale"), [(64, 0.37), (4, None)])
def test_it_is_causal_attention_per_sequence(
    page_size: int, scale: float | None, window: int, softcap: float | None
) -> None:
    """Three sequences grow in ragged steps, with lone rows among them, over pages in no order."""
    lengths = [19, 7, 12]
    steps = [[(0, 11), (0, 1), (0, 12)], [(11, 12), (1, 6)], [(12, 19), (6, 7)]]
    ids = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    tables = [tuple(ids[20 * i : 20 * i + 20]) for i in range(3)]
    sequences = [
        (random_rows(n, HEADS, i), random_rows(n, KV_HEADS, 10 + i), random_rows(n, KV_HEADS, 20 + i))
        for i, n in enumerate(lengths)
    ]
    pages = KVPages(64, page_size)
    for step in steps:
        spans: list[Span] = []
        for (start, end), table in zip(step, tables, strict=False):
            spans.append(Span(spans[-1].first_row + spans[-1].num_rows if spans else 0, end - start, start, table))
        query, key, value = (
            torch.cat([sequences[i][part][:, slice(*rows)] for i, rows in enumerate(step)], dim=1)[None]
            for part in range(3)
        )
        ragged = PagedSdpaBatch(spans, pages)
        options = {"scaling": scale, "sliding_window": window or None, "softcap": softcap}
        out, weights = paged_attention(Layer(), query, key, value, None, ragged=ragged, **options)
        assert (weights, ragged.num_calls) == (None, 1)
        expected = [
            by_hand(q[:, start:end], k[:, :end], v[:, :end], scale or DIM**-0.5, window, softcap or 1e4)
            for (q, k, v), (start, end) in zip(sequences, step, strict=False)
        ]
        assert torch.allclose(out[0], torch.cat(expected, dim=1).transpose(0, 1), atol=1e-5)


def call(dtype: torch.dtype = torch.float32, **arguments: Any) -> torch.Tensor:
    rows = random_rows(3, HEADS, 0)[None].to(dtype)
    ragged = PagedSdpaBatch([Span(0, 3, 0, (0,))], KVPages(1, 8))
    settings: dict[str, Any] = {"attention_mask": None, "scaling": 1.0, "ragged": ragged, **arguments}
    return paged_attention(Layer(), rows, rows, rows, **settings)[0]


def test_the_dtype_stays_also_under_a_soft_cap() -> None:
    assert call(torch.bfloat16).dtype == call(torch.bfloat16, softcap=3.0).dtype == torch.bfloat16


def test_arguments_that_are_not_computed_are_refused_by_name() -> None:
    heads = torch.zeros(HEADS)
    refused = {"position_bias": torch.zeros(1, HEADS, 3, 3), "s_aux": heads, "head_mask": heads, "something_new": 0}
    for name, value in refused.items():
        with pytest.raises(UnsupportedArchitecture, match=rf"Layer passes {name} to attention"):
            call(**{name: value})
    with pytest.raises(UnsupportedArchitecture, match="passes position_bias, s_aux to attention"):
        call(s_aux=heads, position_bias=torch.zeros(1), cache_position=torch.arange(3))
    # What is None or changes nothing passes.
    call(**dict.fromkeys(refused), position_ids=torch.arange(3)[None])


def test_a_model_that_loses_the_batch_or_masks_by_itself_is_refused() -> None:
    for lost in ({"ragged": None}, {"attention_mask": torch.zeros(1, 1, 3, 3)}, {"dropout": 0.1}):
        with pytest.raises(UnsupportedArchitecture, match="Layer does not hand the ragged batch to attention"):
            call(**lost)


def test_layers_have_pages_of_their_own() -> None:
    pages = KVPages(2, 8)
    rows = random_rows(3, HEADS, 0)[None]
    for index in (0, 3):
        ragged = PagedSdpaBatch([Span(0, 3, 0, (1,))], pages)
        paged_attention(Layer(index), rows, rows + index, rows, None, ragged=ragged)
    assert sorted(pages.layers) == [0, 3]
    assert torch.equal(pages.layers[3][0][1, :, :3], rows[0] + 3)
    assert torch.equal(pages.layers[0][0][1, :, :3], rows[0])
