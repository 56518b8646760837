"""Run-ahead is for a drafter that has little to do."""

import pytest

from drafter_svc.run_ahead.budget import RECENT_S, RunAheadBudget


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("num_rows", "sessions", "shares"),
    [
        pytest.param(8, "aaa", [8, 8, 8], id="a lone session has all rows"),
        pytest.param(7, "abcdea", [7, 3, 2, 0, 0, 0], id="sessions share the rows, and too many get none"),
        pytest.param(1, "aab", [1, 1, 0], id="a lone session may guess with a single row"),
        pytest.param(0, "abc", [0, 0, 0], id="no rows are no run-ahead"),
    ],
)
def test_rows_are_shared(num_rows: int, sessions: str, shares: list[int]) -> None:
    budget = RunAheadBudget(num_rows, Clock())
    assert [budget.share(name) for name in sessions] == shares


def test_who_has_not_drafted_of_late_does_not_count() -> None:
    clock = Clock()
    budget = RunAheadBudget(4, clock)
    assert (budget.share("a"), budget.share("b")) == (4, 2)
    clock.now_s += RECENT_S
    assert budget.share("b") == 2
    clock.now_s += RECENT_S / 2
    assert budget.share("b") == 4


def test_requests_that_follow_each_other_are_one_at_a_time() -> None:
    budget = RunAheadBudget(4, Clock())
    for name in ("a", "b", "c", "d", "e"):
        with budget.sharing(name):
            assert budget.share(name) == 4
