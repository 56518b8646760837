"""How forwards of some number of rows compare with others."""

import pytest

from orchestrator.policy.auto.widths import MOST_ROWS, ODD_IN_A_ROW, Widths

SHAPE = {1: 8000.0, 2: 8500.0, 3: 9200.0, 4: 10_700.0, 5: 11_100.0}


def line(rows: int) -> float:
    return 7500 + 750 * rows


def price(widths: Widths, rows: int) -> float:
    ratios = widths.ratios(line)
    return ratios[rows] * line(rows)


def seen(widths: Widths, rows: int, us: float, times: int = 1) -> None:
    for _ in range(times):
        widths.add(rows, us)


def test_nothing_is_known_at_first() -> None:
    assert Widths().ratios(line) == ()


@pytest.mark.parametrize("in_use", [2, 20])
def test_a_shape_is_learned(in_use: int) -> None:
    """Also where mostly one number of rows is in use."""
    widths = Widths()
    for rows, us in list(SHAPE.items()) * 40:
        seen(widths, 3, SHAPE[3], in_use)
        seen(widths, rows, us, 2)
    for rows, us in SHAPE.items():
        assert price(widths, rows) / price(widths, 3) == pytest.approx(us / SHAPE[3], rel=0.04)
    # The line is right on average, of what is in use.
    assert widths.ratios(line)[9] == 1


def test_a_machine_that_is_slower_has_the_same_shape() -> None:
    widths = Widths()
    for rows, us in list(SHAPE.items()) * 40:
        seen(widths, rows, us, 2)
    before = price(widths, 5) / price(widths, 3)
    seen(widths, 3, 1.5 * SHAPE[3], 300)
    assert price(widths, 5) / price(widths, 3) == pytest.approx(before, rel=0.03)


def test_another_shape_is_learned_though_the_old_one_was_sure() -> None:
    widths = Widths()
    for rows, us in list(SHAPE.items()) * 40:
        seen(widths, rows, us, 2)
    assert price(widths, 2) / price(widths, 5) < 0.8
    for _ in range(ODD_IN_A_ROW + 20):
        seen(widths, 5, SHAPE[5], 10)
        seen(widths, 2, 2 * SHAPE[2], 2)
    assert price(widths, 2) / price(widths, 5) > 1.1


def test_an_accident_is_none_of_the_shape() -> None:
    widths = Widths()
    for rows, us in list(SHAPE.items()) * 40:
        seen(widths, rows, us, 2)
    before = widths.ratios(line)
    widths.add(3, 400_000.0)
    widths.add(MOST_ROWS + 1, 9000.0)
    assert widths.ratios(line) == pytest.approx(before, rel=0.02)


def test_one_at_the_beginning_is_got_over() -> None:
    widths = Widths()
    widths.add(4, 4e9)
    for rows, us in list(SHAPE.items()) * 40:
        seen(widths, rows, us, 2)
    assert price(widths, 5) / price(widths, 3) == pytest.approx(SHAPE[5] / SHAPE[3], rel=0.05)


def test_what_was_seen_very_long_ago_says_nothing() -> None:
    widths = Widths()
    seen(widths, 2, SHAPE[2], 2)
    for _ in range(70_000):
        # By turns: of these no two follow each other.
        widths.add(3, SHAPE[3])
        widths.add(4, SHAPE[4])
    assert widths.ratios(line) == ()
