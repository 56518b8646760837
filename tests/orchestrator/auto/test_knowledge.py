"""What is known of one mode: when the target alone is tried."""

import pytest

from orchestrator.auto.knowledge import TRIAL_AFTER, ModeKnowledge, is_same_load
from orchestrator.auto.options import even
from orchestrator.auto.promises import Tally

ALONE = even(3)._replace(closed=7)


def alone_found_out(sessions: int) -> ModeKnowledge:
    """Return what is known once the target alone has been in use with so many sessions."""
    known, tally = ModeKnowledge(), Tally()
    known.put_off_trial(sessions)
    tally.add(1000, 1000)
    known.promises.settle(ALONE, 1.0, tally)
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
    assert alone_found_out(sessions=8).doubt_of_alone(ALONE, sessions) < 0.5


@pytest.mark.parametrize("sessions", [2, 13, 16])
def test_what_was_found_out_under_another_load_is_not_known(sessions: int) -> None:
    assert alone_found_out(sessions=8).doubt_of_alone(ALONE, sessions) == 1.0


def test_nothing_is_known_before_the_first_time() -> None:
    assert ModeKnowledge().doubt_of_alone(ALONE, 8) == 1.0


def test_a_trial_waits_for_verdicts_of_all_sessions_and_then_for_more() -> None:
    known = ModeKnowledge()
    known.num_verdicts = TRIAL_AFTER * 4 - 1
    assert not known.is_trial_due(4)
    known.num_verdicts += 1
    assert known.is_trial_due(4)
    known.num_verdicts *= 3
    assert not known.is_trial_due(4)
    known.num_verdicts *= 2
    assert known.is_trial_due(4)
