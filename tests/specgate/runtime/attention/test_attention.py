"""Attention over pages equals attention written down; what is not computed is refused, not left out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import KVPages, paged_attention
from specgate.runtime.attention.paged_sdpa import PagedSdpaBatch, Span

HEADS, KV_HEADS, DIM = 4, 2, 8


class Layer(torch.nn.Module):
    """What an attention module shows of itself."""

    layer_idx = 0


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """Causal attention of the last rows, [heads, rows, dim], one row and one head at a time."""
    out = torch.empty_like(query)
    first = key.shape[1] - query.shape[1]
    for head in range(HEADS):
        shared = head * KV_HEADS // HEADS
        for row in range(query.shape[1]):
            seen = slice(max(0, first + row + 1 - window) if window else 0, first + row + 1)
            weights = (key[shared, seen] @ query[head, row] * scale).softmax(0)
            out[head, row] = weights @ value[shared, seen]
    return out


def random_rows(rows: int, heads: int, seed: int) -> torch.Tensor:
    return torch.randn(heads, rows, DIM, generator=torch.Generator().manual_seed(seed))


def batch_of(parts: list[tuple[torch.Tensor, slice]]) -> torch.Tensor:
    return torch.cat([rows[:, part] for rows, part in parts], dim=1)[None]


@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize("page_size", [64, 4, 1])
def test_it_is_causal_attention_per_sequence(page_size: int, window: int) -> None:
    """Three sequences grow in ragged steps, with lone rows among them, over pages in no order."""
    lengths, scale = [19, 7, 12], 0.37
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
            batch_of([(sequences[i][part], slice(*rows)) for i, rows in enumerate(step)]) for part in range(3)
        )
        ragged = PagedSdpaBatch(spans, pages)
        out, weights = paged_attention(
            Layer(), query, key, value, None, scaling=scale, sliding_window=window or None, ragged=ragged
        )
        assert weights is None
        assert ragged.num_calls == 1
        expected = [
            by_hand(q[:, start:end], k[:, :end], v[:, :end], scale, window)
            for (q, k, v), (start, end) in zip(sequences, step, strict=False)
        ]
        assert torch.allclose(out[0], torch.cat(expected, dim=1).transpose(0, 1), atol=1e-5)


def call(**arguments: Any) -> None:
    rows = random_rows(3, HEADS, 0)[None]
    ragged = PagedSdpaBatch([Span(0, 3, 0, (0,))], KVPages(1, 8))
    settings: dict[str, Any] = {"attention_mask": None, "scaling": 1.0, "ragged": ragged, **arguments}
    paged_attention(Layer(), rows, rows, rows, **settings)


REFUSED = {
    "position_bias": torch.zeros(1, HEADS, 3, 3),
    "s_aux": torch.zeros(HEADS),
    "head_mask": torch.ones(HEADS),
    "something_new": 0,
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_is_not_computed_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=rf"Layer passes {name} to attention"):
        call(**{name: REFUSED[name]})


def test_all_of_them_are_named() -> None:
    with pytest.raises(UnsupportedArchitecture, match="passes position_bias, s_aux to attention"):
        call(s_aux=torch.zeros(HEADS), position_bias=torch.zeros(1), cache_position=torch.arange(3))


@pytest.mark.parametrize("arguments", [{}, dict.fromkeys(REFUSED), {"position_ids": torch.arange(3)[None]}])
def test_an_argument_that_is_none_or_changes_nothing_passes(arguments: dict[str, Any]) -> None:
    call(**arguments)


@pytest.mark.parametrize("lost", [{"ragged": None}, {"attention_mask": torch.zeros(1, 1, 3, 3)}, {"dropout": 0.1}])
def test_a_model_that_loses_the_batch_or_masks_by_itself_is_refused(lost: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="Layer does not hand the ragged batch to attention"):
        call(**lost)


def test_layers_have_pages_of_their_own() -> None:
    pages = KVPages(2, 8)
    rows = random_rows(3, HEADS, 0)[None]
    for index in (0, 3):
        module: Any = SimpleNamespace(layer_idx=index)
        paged_attention(module, rows, rows + index, rows, None, ragged=PagedSdpaBatch([Span(0, 3, 0, (1,))], pages))
    assert sorted(pages.layers) == [0, 3]
    assert torch.equal(pages.layers[3][0][1, :, :3], rows[0] + 3)
    assert torch.equal(pages.layers[0][0][1, :, :3], rows[0])
