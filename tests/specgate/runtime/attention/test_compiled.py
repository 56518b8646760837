"""Attention without Python between sequences: the same bits, in company or alone; copies of rows where they pay."""

from collections.abc import Iterator

import pytest
import torch

from specgate.runtime.attention import compiled, kernels, paged_sdpa
from specgate.runtime.attention.compiled import Attend, PageSpan, attend_in_turn, compiled_attend, twins_are_faster
from specgate.runtime.attention.interface import KVPages
from specgate.runtime.attention.paged_sdpa import PagedSdpaBatch, Span
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Rows
from tests.support.models import load_float32, write_llama

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 64
PLACES = [PageSpan(0, 1, 7, 2), PageSpan(1, 1, 40, 0), PageSpan(2, 3, 11, 3)]


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
        self.masks = [mask(place, window, dtype) for place in PLACES]

    def run(self, attend: Attend, *, has_twins: bool = False) -> list[torch.Tensor]:
        """Return what comes out, and the pages behind it."""
        pages = [one.clone() for one in self.pages]
        return [attend(*self.rows, *pages, PLACES, self.masks, 0.3, self.is_grouped, has_twins), *pages]

    def alone(self, index: int, *, has_twins: bool = False) -> torch.Tensor:
        """Return what one of the sequences gets without the others."""
        first_row, num_rows, start, page = PLACES[index]
        rows = [one[:, :, first_row : first_row + num_rows] for one in self.rows]
        pages = [one.clone() for one in self.pages]
        attend: Attend = attend_in_turn
        place = PageSpan(0, num_rows, start, page)
        return attend(*rows, *pages, [place], [self.masks[index]], 0.3, self.is_grouped, has_twins)


def mask(place: PageSpan, window: int, dtype: torch.dtype) -> torch.Tensor | None:
    if place.num_rows == 1 and not window:
        return None
    end = place.start + place.num_rows
    row, column = torch.arange(place.start, end)[:, None], torch.arange(end)[None]
    hidden = (column > row) | (column <= row - window) if window else column > row
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS])
def test_compiled_it_gives_the_same_bits(kv_heads: int, dtype: torch.dtype, window: int) -> None:
    case = Case(kv_heads, dtype, window)
    compiled = compiled_attend()
    assert compiled is not attend_in_turn
    written = case.run(attend_in_turn)
    # What torch makes of a function hangs on how often it ran.
    for _ in range(4):
        for one, other in zip(written, case.run(compiled), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("has_twins", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_company_changes_nothing(dtype: torch.dtype, has_twins: bool) -> None:
    case = Case(KV_HEADS, dtype)
    together, *pages = case.run(compiled_attend(), has_twins=has_twins)
    for index, (first_row, num_rows, _, _) in enumerate(PLACES):
        own = together[:, :, first_row : first_row + num_rows]
        assert torch.equal(own, case.alone(index, has_twins=has_twins))
    for page, was, new in zip(pages, case.pages, case.rows[1:], strict=True):
        expected = was.clone()
        for first_row, num_rows, start, number in PLACES:
            expected[number, :, start : start + num_rows] = new[0, :, first_row : first_row + num_rows]
        assert torch.equal(page, expected)


def test_nor_does_a_longer_one_that_spans_pages() -> None:
    """Then what lies in a page runs as it does alone, copies of lone rows and all."""
    case = Case(KV_HEADS, BFLOAT16)
    short = [Span(0, 1, 7, (2,)), Span(1, 3, 11, (3,))]
    outs = []
    for together, rows in ((short, [0, 2, 3, 4]), ([*short, Span(4, 2, PAGE - 1, (1, 0))], [0, 2, 3, 4, 1, 1])):
        pages = KVPages(4, PAGE, {0: (case.pages[0].clone(), case.pages[1].clone())})
        batch = PagedSdpaBatch(together, pages, has_twins=True)
        query, key, value = (one[:, :, rows] for one in case.rows)
        outs.append(batch.attend(0, query, key, value, scale=0.3, window=0, softcap=None))
    assert torch.equal(outs[0], outs[1][:, :4])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_lone_row_may_bring_a_copy_of_itself(is_compiled: bool) -> None:
    case = Case(KV_HEADS, BFLOAT16)
    attend: Attend = compiled_attend() if is_compiled else attend_in_turn
    (plain, *pages), (twins, *same_pages) = case.run(attend), case.run(attend, has_twins=True)
    assert twins.shape == plain.shape
    assert torch.allclose(plain.float(), twins.float(), atol=1e-2)
    assert all(map(torch.equal, pages, same_pages))


def test_no_other_row_does(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, *others: torch.Tensor, **options: object) -> torch.Tensor:
        widths.append(query.shape[2])
        return real(query, *others, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    for window, has_twins in ((0, True), (0, False), (3, True)):
        Case(KV_HEADS, BFLOAT16, window).run(attend_in_turn, has_twins=has_twins)
    assert widths == [2, 2, 3, 1, 1, 3, 1, 1, 3]


@pytest.mark.parametrize("has_twins", [False, True])
def test_what_is_faster_at_load_is_what_batches_do(
    has_twins: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "twins_are_faster", lambda device, dtype: has_twins)
    (kernel,) = kernels.kernels_for("auto", load_float32(write_llama(tmp_path_factory.mktemp("llama"))))
    sequence = KVSequence([1, 2])
    sequence.block_table = [0]
    batch = kernel.inputs([Rows(sequence, 2, 1)], kernel.pages(2, PAGE), torch.device("cpu")).ragged
    assert isinstance(batch, PagedSdpaBatch)
    assert batch.has_twins is has_twins


@pytest.mark.parametrize(
    ("device", "dtype", "two_s", "expected"),
    [
        ("cpu", BFLOAT16, 5.0, True),
        ("cpu", BFLOAT16, 9.0, False),
        ("cpu", BFLOAT16, 20.0, False),
        ("cpu", FLOAT32, 0.1, False),
        ("cuda", BFLOAT16, 0.1, False),
    ],
)
def test_copies_are_brought_where_two_rows_are_clearly_faster(
    device: str, dtype: torch.dtype, two_s: float, expected: bool
) -> None:
    def timer(num_rows: int, of: torch.dtype) -> float:
        assert of is dtype
        return {1: 10.0, 2: two_s}[num_rows]

    assert twins_are_faster(torch.device(device), dtype, timer) is expected


def test_time_passes() -> None:
    assert all(compiled.lone_row_seconds(num_rows, BFLOAT16) > 0 for num_rows in (1, 2))


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
    two = [Span(0, 1, 0, (0,)), Span(1, 1, 0, (1,))]
    PagedSdpaBatch(two, KVPages(2, PAGE)).attend(0, query, rows, rows, scale=None, window=0, softcap=None)
    PagedSdpaBatch(two[:1], KVPages(2, PAGE)).attend(
        0, query[:, :, :1], rows[:, :, :1], rows[:, :, :1], scale=None, window=0, softcap=None
    )
    assert asked == (["cpu"] if device == "cpu" else [])
