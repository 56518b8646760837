"""Lines and means that forget."""

import pytest

from orchestrator.policy.auto.fit import Line, Mean, nonnegative, solved


def test_equations_are_solved() -> None:
    assert solved([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]], [6.0, 10.0, 8.0]) == pytest.approx([1, 2, 3])


def test_nothing_gives_time_back() -> None:
    line = Line(2, (((1, 0), 0.2),), half_life=60)
    # A line through these would begin below 0.
    for _ in range(20):
        for tokens, us in ((2, 10.0), (3, 30.0)):
            line.add((1, tokens), us)
    assert line.coefficients[0] == 0.0
    assert line.coefficients[1] == pytest.approx(110 / 13, rel=0.01)


def test_least_squares_without_what_would_be_negative() -> None:
    assert nonnegative([[2.0, 0.0], [0.0, 2.0]], [-1.0, 4.0]) == [0.0, 2.0]
    assert nonnegative([[2.0, 0.0], [0.0, 2.0]], [-1.0, -4.0]) == [0.0, 0.0]


def test_a_line_has_no_unit() -> None:
    lines = [Line(2, (((-0.05, 1), 1.0),), half_life=60) for _ in range(2)]
    for rows in (2, 4, 6, 3, 9):
        lines[0].add((1, rows), 100 + 3 * rows)
        lines[1].add((1, rows), 1e6 * (100 + 3 * rows))
    assert lines[1].coefficients == pytest.approx([1e6 * value for value in lines[0].coefficients])


def test_groups_push_out_their_own_kind_only() -> None:
    line = Line(2, (((0, 1), 1e-6),), half_life=10, groups=2)
    for _ in range(10):
        line.add((1, 9), 190, group=1)
    for _ in range(1000):
        line.add((1, 1), 110, group=0)
    assert line.about((1, 9)) == pytest.approx(190, rel=0.01)
    assert line.about((1, 1)) == pytest.approx(110, rel=0.01)


def test_a_mean_is_not_moved_far_by_an_outlier() -> None:
    mean = Mean(half_life=60)
    for _ in range(50):
        mean.add(100)
    mean.add(1e9)
    assert mean.value < 110
