"""What is known of one mode: when the target alone is tried."""

import pytest

from orchestrator.policy.auto.choice import Table
from orchestrator.policy.auto.mode_state import (
    MOST_SESSIONS,
    TRIAL_AFTER,
    TRIAL_LONGER,
    InUse,
    ModeState,
    is_same_load,
)
from orchestrator.policy.auto.options import PlanChoice, even

ALONE = even(3)._replace(closed=7)


def in_use(choice: PlanChoice, sessions: int, num_verdicts: int) -> InUse:
    """Return a table that came to what it promised."""
    table = Table(choice, rate=1.0, probe_loss_us=0)
    one = InUse(table, due_at=0, counts_from=0, sessions=sessions)
    for _ in range(num_verdicts):
        one.tally.add(1, 1)
    return one


def alone_found_out(sessions: int) -> ModeState:
    """Return what is known once it was found out what the target alone comes to with so many sessions."""
    known = ModeState()
    known.mark_stable(in_use(ALONE, sessions, 1000), 1.0, sessions)
    return known


@pytest.mark.parametrize(("sessions", "others"), [(1, 1), (2, 3), (8, 12), (10, 8)])
def test_about_as_many_are_the_same_load(sessions: int, others: int) -> None:
    assert is_same_load(sessions, others)
    assert is_same_load(others, sessions)


@pytest.mark.parametrize(("sessions", "others"), [(1, 2), (8, 13), (16, 8), (1, 0)])
def test_many_more_are_another_load(sessions: int, others: int) -> None:
    assert not is_same_load(sessions, others)
    assert not is_same_load(others, sessions)


@pytest.mark.parametrize("sessions", [7, 8, 12])
def test_what_was_found_out_with_about_as_many_is_doubted_less(sessions: int) -> None:
    assert alone_found_out(sessions=8).doubt_of_alone(sessions) < 0.5


@pytest.mark.parametrize("sessions", [2, 13, 16])
def test_what_was_found_out_under_another_load_is_not_known(sessions: int) -> None:
    assert alone_found_out(sessions=8).doubt_of_alone(sessions) == 1.0


def test_nothing_is_known_before_the_first_time() -> None:
    assert ModeState().doubt_of_alone(8) == 1.0


@pytest.mark.parametrize(("choice", "num_verdicts"), [(even(3), 1000), (ALONE, 8)])
def test_what_drafted_or_was_in_use_for_a_moment_says_nothing_of_the_target_alone(
    choice: PlanChoice, num_verdicts: int
) -> None:
    known = alone_found_out(sessions=2)
    known.put_off_trial(8)
    known.mark_stable(in_use(choice, 8, num_verdicts), 1.0, 8)
    assert known.doubt_of_alone(8) == 1.0


@pytest.mark.parametrize("sessions", [4, 8, 16])
def test_a_trial_waits_for_verdicts_of_all_sessions_and_then_for_four_times_as_many(sessions: int) -> None:
    known, first = ModeState(), TRIAL_AFTER * min(sessions, MOST_SESSIONS)
    known.num_verdicts = first - 1
    assert not known.take_trial(sessions)
    known.num_verdicts = first
    assert known.take_trial(sessions)
    known.num_verdicts = TRIAL_LONGER * first - 1
    assert not known.take_trial(sessions)
    known.num_verdicts = TRIAL_LONGER * first
    assert known.take_trial(sessions)
