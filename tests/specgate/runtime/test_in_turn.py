"""Attention without Python between sequences: the same bits, in company or alone; copies of rows where they pay."""

import pytest
import torch

from specgate.runtime import in_turn
from specgate.runtime.in_turn import Attend, Place, attend_in_turn, compiled, twins_are_faster

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEADS, DIM, PAGE = 4, 16, 64
PLACES = [Place(0, 1, 7, 2), Place(1, 1, 40, 0), Place(2, 3, 11, 3)]


class Case:
    """Rows of three sequences, over pages that are full of other numbers."""

    def __init__(self, kv_heads: int, dtype: torch.dtype, window: int = 0) -> None:
        generator = torch.Generator().manual_seed(kv_heads)
        shapes = (HEADS, 5), (kv_heads, 5), (kv_heads, 5)
        self.rows = [torch.randn(1, *shape, DIM, generator=generator).to(dtype) for shape in shapes]
        self.pages = [torch.randn(4, kv_heads, PAGE, DIM, generator=generator).to(dtype) for _ in range(2)]
        self.is_grouped = kv_heads < HEADS
        self.masks = [mask(place, window, dtype) for place in PLACES]

    def run(self, attend: Attend, places: list[Place] = PLACES, *, has_twins: bool = False) -> list[torch.Tensor]:
        """Return what comes out, and the pages behind it."""
        pages = [one.clone() for one in self.pages]
        masks = [self.masks[PLACES.index(place)] for place in places]
        out = attend(*self.rows, *pages, places, masks, 0.3, self.is_grouped, has_twins)
        return [out, *pages]

    def alone(self, index: int) -> torch.Tensor:
        """Return what one of the sequences gets without the others."""
        first_row, num_rows, start, page = PLACES[index]
        query, key, value = (rows[:, :, first_row : first_row + num_rows] for rows in self.rows)
        pages = [one.clone() for one in self.pages]
        place = Place(0, num_rows, start, page)
        attend: Attend = attend_in_turn
        return attend(query, key, value, *pages, [place], [self.masks[index]], 0.3, self.is_grouped, False)


def mask(place: Place, window: int, dtype: torch.dtype) -> torch.Tensor | None:
    if place.num_rows == 1 and not window:
        return None
    end = place.start + place.num_rows
    row, column = torch.arange(place.start, end)[:, None], torch.arange(end)[None]
    hidden = (column > row) | (column <= row - window) if window else column > row
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_compiled_it_gives_the_same_bits(kv_heads: int, dtype: torch.dtype, window: int) -> None:
    case = Case(kv_heads, dtype, window)
    assert compiled() is not attend_in_turn
    written = case.run(attend_in_turn)
    # What torch makes of a function hangs on how often it ran.
    for _ in range(4):
        for one, other in zip(written, case.run(compiled()), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_company_changes_nothing(dtype: torch.dtype) -> None:
    case = Case(2, dtype)
    together, *pages = case.run(compiled())
    for index, place in enumerate(PLACES):
        assert torch.equal(together[:, :, place.first_row : place.first_row + place.num_rows], case.alone(index))
    for page, was, new in zip(pages, case.pages, case.rows[1:], strict=True):
        expected = was.clone()
        for first_row, num_rows, start, number in PLACES:
            expected[number, :, start : start + num_rows] = new[0, :, first_row : first_row + num_rows]
        assert torch.equal(page, expected)


@pytest.mark.parametrize("attend", [attend_in_turn, compiled()])
def test_a_lone_row_may_bring_a_copy_of_itself(attend: Attend) -> None:
    case = Case(2, BFLOAT16)
    (plain, *pages), (twins, *same_pages) = case.run(attend), case.run(attend, has_twins=True)
    assert torch.allclose(plain.float(), twins.float(), atol=1e-2)
    # Rows that are not alone have none.
    assert torch.equal(plain[:, :, 2:], twins[:, :, 2:])
    assert all(map(torch.equal, pages, same_pages))


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
    assert all(in_turn.lone_row_seconds(num_rows, BFLOAT16) > 0 for num_rows in (1, 2))


def test_where_torch_compiles_nothing_it_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(torch.jit, "script")
    assert in_turn.compiled.__wrapped__() is attend_in_turn
    assert "attention is not compiled: AttributeError" in caplog.text
