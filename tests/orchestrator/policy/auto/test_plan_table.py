"""When a table is searched for again."""

import pytest

from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.mode_state import InUse, ModeState
from orchestrator.policy.auto.plan_table import MOST_VERDICTS_A_TABLE, VERDICTS_A_TABLE, search
from orchestrator.policy.auto.prices import Prices
from tests.orchestrator.policy.auto.support import MODE, a_round, taught

MAX_GAMMA = 8


def of_many_rounds(sessions: int) -> tuple[ModeState, Prices]:
    """Return what is known after many rounds of each session whose drafts never stood."""
    learner, seen = Learner(), [a_round(gamma=3, accepted=0, batch=sessions)] * 300
    for _ in range(sessions):
        taught(*seen, learner=learner)
    known, prices = learner.knowledge(MODE), learner.costs.now()
    assert prices is not None
    return known, prices


def searched(known: ModeState, prices: Prices) -> InUse:
    """Search for a table when that is due, and return what is in use then."""
    in_use = known.tables.get(MAX_GAMMA)
    # So many that a quarter of them is no bound.
    known.num_verdicts = 100_000 if in_use is None else in_use.due_at
    for _ in search(known, MAX_GAMMA, prices):
        pass
    return known.tables[MAX_GAMMA]


def wait_of(known: ModeState, in_use: InUse) -> int:
    """Return the verdicts until the next search."""
    return in_use.due_at - known.num_verdicts


def found_out(known: ModeState, prices: Prices) -> InUse:
    """Let the table in use come to what it promised, and return it when that is known."""
    in_use = known.tables[MAX_GAMMA]
    for _ in range(1000):
        in_use.tally.add(1, round(1 / in_use.table.rate))
    return searched(known, prices)


@pytest.mark.parametrize(("sessions", "of_each"), [(1, MOST_VERDICTS_A_TABLE), (4, VERDICTS_A_TABLE)])
def test_in_a_crowd_what_stays_is_looked_at_soon_until_it_is_found_out(sessions: int, of_each: int) -> None:
    known, prices = of_many_rounds(sessions)
    first = searched(known, prices)
    assert wait_of(known, first) == VERDICTS_A_TABLE * sessions
    again = searched(known, prices)
    assert again.table.number == first.table.number
    assert wait_of(known, again) == of_each * sessions


def test_what_is_found_out_is_left_for_longer_from_then_on() -> None:
    known, prices = of_many_rounds(sessions=4)
    first = searched(known, prices)
    again = found_out(known, prices)
    assert again.table.number == first.table.number
    assert wait_of(known, again) == MOST_VERDICTS_A_TABLE * 4
    assert wait_of(known, searched(known, prices)) == MOST_VERDICTS_A_TABLE * 4


def test_what_comes_after_it_is_not_found_out_thereby() -> None:
    known, prices = of_many_rounds(sessions=4)
    searched(known, prices)
    alone = found_out(known, prices)
    for _ in range(300):
        known.history.add(0, a_round(gamma=3, accepted=3))
    drafting = searched(known, prices)
    assert not alone.table.choice.drafts
    assert drafting.table.choice.drafts
    for _ in range(2):
        drafting = searched(known, prices)
    assert not drafting.is_found_out
    assert wait_of(known, drafting) == VERDICTS_A_TABLE * 4


def test_under_another_load_it_has_to_be_found_out_again() -> None:
    known, prices = of_many_rounds(sessions=4)
    searched(known, prices)
    found_out(known, prices)
    crowd = prices._replace(sessions=8, groups=8.0)
    assert wait_of(known, searched(known, crowd)) == VERDICTS_A_TABLE * 8
    assert wait_of(known, found_out(known, crowd)) == MOST_VERDICTS_A_TABLE * 8
