"""When a table is searched for again."""

import pytest

from orchestrator.auto.knowledge import InUse, ModeKnowledge
from orchestrator.auto.learner import Learner
from orchestrator.auto.observation import Mode
from orchestrator.auto.prices import Prices
from orchestrator.auto.tables import MOST_VERDICTS_A_TABLE, VERDICTS_A_TABLE, search
from specgate.types import SamplingParams, Verification
from tests.orchestrator.auto.support import REQUEST, a_round

MODE = Mode.of(Verification.SHARED_NOISE, SamplingParams())
MAX_GAMMA = 8


def of_many_rounds(num_sessions: int) -> tuple[ModeKnowledge, Prices]:
    """Return what is known after many rounds whose drafts never stood, with the target alone in use."""
    learner = Learner()
    observers = [learner.observer(REQUEST) for _ in range(num_sessions)]
    for _ in range(200):
        for observer in observers:
            assert observer is not None
            observer(a_round(gamma=3, accepted=0, batch=num_sessions))
    known, prices = learner.knowledge(MODE), learner.costs.now()
    assert prices is not None
    known.num_verdicts = 100_000
    return known, prices


def searched(known: ModeKnowledge, prices: Prices) -> InUse:
    """Search for a table, and return what is in use then."""
    for _ in search(known, MAX_GAMMA, prices):
        pass
    return known.tables[MAX_GAMMA]


def let_it_come_to_something(known: ModeKnowledge, in_use: InUse) -> None:
    for _ in range(1000):
        in_use.tally.add(1, round(1 / in_use.table.rate))
    known.num_verdicts = in_use.due_at


@pytest.mark.parametrize(("sessions", "each"), [(1, MOST_VERDICTS_A_TABLE), (4, VERDICTS_A_TABLE)])
def test_in_a_crowd_what_stays_is_looked_at_soon_until_it_is_found_out(sessions: int, each: int) -> None:
    known, prices = of_many_rounds(sessions)
    first = searched(known, prices)
    assert first.due_at - known.num_verdicts == VERDICTS_A_TABLE * sessions
    known.num_verdicts = first.due_at
    again = searched(known, prices)
    assert again.table.number == first.table.number
    assert again.due_at - known.num_verdicts == each * sessions


@pytest.mark.parametrize("sessions", [1, 4])
def test_what_is_found_out_is_left_alone_for_longer(sessions: int) -> None:
    known, prices = of_many_rounds(sessions)
    first = searched(known, prices)
    let_it_come_to_something(known, first)
    again = searched(known, prices)
    assert again.table.number == first.table.number
    assert again.due_at - known.num_verdicts == MOST_VERDICTS_A_TABLE * sessions
    # And stays so: it was found out once.
    known.num_verdicts = again.due_at
    assert searched(known, prices).due_at - known.num_verdicts == MOST_VERDICTS_A_TABLE * sessions
