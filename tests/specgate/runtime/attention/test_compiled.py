"""Attention without Python between sequences: the same bits, in company or alone."""

from collections.abc import Iterator

import pytest
import torch

from specgate.runtime.attention import paged_sdpa
from specgate.runtime.attention.compiled import (
    Attend,
    PageSpan,
    attend_in_turn,
    compiled_attend,
)
from specgate.runtime.attention.interface import KVPages
from specgate.runtime.attention.paged_sdpa import PagedSdpaBatch, Span

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 64
SPANS = [Span(0, 1, 7, (2,)), Span(1, 1, 40, (0,)), Span(2, 3, 11, (3,))]
PLACES = [span.place for span in SPANS]


@pytest.fixture(autouse=True)
def as_it_is_served() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Case:
    """Rows of three sequences, over pages that are full of other numbers."""

    def __init__(self, kv_heads: int, dtype: torch.dtype, window: int = 0) -> None:
        generator = torch.Generator().manual_seed(kv_heads)
        shapes = (HEADS, 5), (kv_heads, 5), (kv_heads, 5)
        self.rows = [torch.randn(1, *shape, DIM, generator=generator).to(dtype) for shape in shapes]
        self.pages = [torch.randn(4, kv_heads, PAGE, DIM, generator=generator).to(dtype) for _ in range(2)]
        self.is_grouped = kv_heads < HEADS
        batch = PagedSdpaBatch(SPANS, KVPages(4, PAGE))
        self.masks = [batch.mask(span, window, self.rows[0]) for span in SPANS]

    def run(self, attend: Attend) -> list[torch.Tensor]:
        """Return what comes out, and the pages behind it."""
        pages = [one.clone() for one in self.pages]
        return [attend(*self.rows, *pages, PLACES, self.masks, 0.3, self.is_grouped), *pages]

    def alone(self, index: int) -> torch.Tensor:
        """Return what one of the sequences gets without the others."""
        first_row, num_rows, start, page = PLACES[index]
        rows = [one[:, :, first_row : first_row + num_rows] for one in self.rows]
        pages = [one.clone() for one in self.pages]
        attend: Attend = attend_in_turn
        place = PageSpan(0, num_rows, start, page)
        return attend(*rows, *pages, [place], [self.masks[index]], 0.3, self.is_grouped)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS])
def test_compiled_it_gives_the_same_bits(kv_heads: int, dtype: torch.dtype, window: int) -> None:
    case = Case(kv_heads, dtype, window)
    compiled = compiled_attend()
    assert compiled is not attend_in_turn
    written = case.run(attend_in_turn)
    # What torch makes of a function depends on how often it ran.
    for _ in range(4):
        for one, other in zip(written, case.run(compiled), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_company_changes_nothing(dtype: torch.dtype) -> None:
    case = Case(KV_HEADS, dtype)
    together, *pages = case.run(compiled_attend())
    for index, (first_row, num_rows, _, _) in enumerate(PLACES):
        own = together[:, :, first_row : first_row + num_rows]
        assert torch.equal(own, case.alone(index))
    for page, was, new in zip(pages, case.pages, case.rows[1:], strict=True):
        expected = was.clone()
        for first_row, num_rows, start, number in PLACES:
            expected[number, :, start : start + num_rows] = new[0, :, first_row : first_row + num_rows]
        assert torch.equal(page, expected)


def test_nor_does_a_longer_one_that_spans_pages() -> None:
    """Then what lies in a page runs as it does alone."""
    case = Case(KV_HEADS, BFLOAT16)
    short = [Span(0, 1, 7, (2,)), Span(1, 3, 11, (3,))]
    outs = []
    for together, rows in ((short, [0, 2, 3, 4]), ([*short, Span(4, 2, PAGE - 1, (1, 0))], [0, 2, 3, 4, 1, 1])):
        pages = KVPages(4, PAGE, {0: (case.pages[0].clone(), case.pages[1].clone())})
        batch = PagedSdpaBatch(together, pages)
        query, key, value = (one[:, :, rows] for one in case.rows)
        outs.append(batch.attend(0, query, key, value, scale=0.3, window=0, softcap=None))
    assert torch.equal(outs[0], outs[1][:, :4])


def gone(*_: object) -> torch.Tensor:
    raise RuntimeError("The following operation failed:\nno compiler")


def broken(_: Attend) -> Attend:
    return gone


@pytest.mark.parametrize("script", [gone, broken])
def test_where_torch_compiles_nothing_that_works_it_runs_as_it_is_written(
    script: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.jit, "script", script)
    assert compiled_attend.__wrapped__() is attend_in_turn
    assert "attention is not compiled: " in caplog.text


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_it_is_compiled_on_the_cpu_alone(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is told by the class of an error whether a device is lost, which compiled code forgets."""
    asked: list[str] = []

    def ask() -> Attend:
        asked.append(device)
        return attend_in_turn

    monkeypatch.setattr(paged_sdpa, "compiled_attend", ask)
    query, rows = (torch.zeros(1, heads, 2, DIM, device=device) for heads in (HEADS, KV_HEADS))
    batch = PagedSdpaBatch([Span(0, 1, 0, (0,)), Span(1, 1, 0, (1,))], KVPages(2, PAGE))
    batch.attend(0, query, rows, rows, scale=None, window=0, softcap=None)
    assert asked == (["cpu"] if device == "cpu" else [])
