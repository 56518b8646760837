"""Run-ahead is for a drafter that has little to do."""

import pytest

from drafter_svc.run_ahead.budget import RECENT_S, RunAheadBudget


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_lone_session_has_all_rows() -> None:
    budget = RunAheadBudget(8, Clock())
    assert [budget.share("one") for _ in range(3)] == [8, 8, 8]


def test_sessions_share_the_rows_and_too_many_get_none() -> None:
    budget = RunAheadBudget(7, Clock())
    assert [budget.share(name) for name in ("a", "b", "c", "d", "e", "a")] == [7, 3, 2, 0, 0, 0]


def test_a_lone_session_may_guess_with_a_single_row() -> None:
    budget = RunAheadBudget(1, Clock())
    assert [budget.share(name) for name in ("a", "a", "b")] == [1, 1, 0]


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


@pytest.mark.parametrize("num_sessions", [1, 3])
def test_no_rows_are_no_run_ahead(num_sessions: int) -> None:
    budget = RunAheadBudget(0, Clock())
    assert {budget.share(name) for name in range(num_sessions)} == {0}
