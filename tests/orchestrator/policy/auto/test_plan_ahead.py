"""What ``auto`` foresees of a round is what it plans once that round is there."""

from dataclasses import replace

import pytest

from orchestrator.policy.auto.choice import Table
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.observation import Mode
from orchestrator.policy.auto.options import PlanChoice
from orchestrator.policy.auto.policy import ALONE_AFTER, FIRST_ROUNDS, VARY_EVERY, Auto
from tests.orchestrator.policy.auto.support import MODE, REQUEST, Progress


class Chosen:
    """A learner that has chosen, and is at some round."""

    def __init__(self, choice: PlanChoice, round_number: int = FIRST_ROUNDS + 1) -> None:
        self.choice = choice
        self.round = round_number

    def table(self, mode: Mode, max_gamma: int) -> Table:
        return Table(self.choice, 1e-4, 1000.0, number=3, probes=False)

    standing = table

    def coming_round(self, mode: Mode) -> int:
        return self.round + 1

    def next_round(self, mode: Mode) -> int:
        self.round += 1
        return self.round

    def book_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool:
        return False

    def solo_run(self) -> int:
        return 16


@pytest.mark.parametrize(
    "choice", [PlanChoice(0, 3, 3), PlanChoice(0, 2, 6), PlanChoice(2, 3, 3), PlanChoice(4, 2, 5), PlanChoice(1, 1, 8)]
)
@pytest.mark.parametrize("fully_accepted", [True, False])
def test_it_is_what_is_planned(choice: PlanChoice, fully_accepted: bool) -> None:
    for confidence in (0.05, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0):
        policy = Auto(Chosen(choice), MODE, 8)
        foreseen = policy.plan_ahead(Progress(None, fully_accepted=fully_accepted))
        plan = policy.plan(Progress(confidence, fully_accepted=fully_accepted))
        assert foreseen is not None
        if confidence >= foreseen.least_confidence:
            assert foreseen.plan == plan
    # It is open where the target is sure.
    assert foreseen.least_confidence <= 0.7


@pytest.mark.parametrize("coming", [ALONE_AFTER, FIRST_ROUNDS + VARY_EVERY // 2 + 1])
def test_what_is_tried_is_not_foreseen(coming: int) -> None:
    policy = Auto(Chosen(PlanChoice(0, 3, 3), coming - 1), MODE, 8)
    assert policy.plan_ahead(Progress()) is None
    policy.plan(Progress(0.9))
    if coming > FIRST_ROUNDS:
        # The second of two rounds that try another γ, too.
        assert policy.plan_ahead(Progress()) is None
        policy.plan(Progress(0.9))
    assert policy.plan_ahead(Progress()) is not None


def test_a_probe_that_waits_for_an_unsure_place_is_in_no_other_rounds_way() -> None:
    class Probing(Chosen):
        def standing(self, mode: Mode, max_gamma: int) -> Table:
            return Chosen.table(self, mode, max_gamma)._replace(probes=True)

        table = standing

        def book_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool:
            return True

    policy = Auto(Probing(PlanChoice(2, 3, 3)), MODE, 8)
    for _ in range(4):
        policy.plan(Progress(0.9))
        foreseen = policy.plan_ahead(Progress(None))
        assert foreseen is not None
        assert foreseen.least_confidence == 0.3
        assert foreseen.plan == policy.plan(Progress(0.9))


def test_where_the_target_is_left_alone_nothing_is_foreseen() -> None:
    assert Auto(Chosen(PlanChoice(8, 3, 3)), MODE, 8).plan_ahead(Progress()) is None


def test_without_knowledge_nothing_is_foreseen() -> None:
    learner = Learner()
    policy = learner.policy(REQUEST)
    assert policy.plan_ahead(Progress()) is None
    assert learner.standing(MODE, 8) is None


def test_foreseeing_counts_no_round() -> None:
    learner = Learner()
    policy = learner.policy(replace(REQUEST, gamma=4))
    for number in range(1, 5):
        assert learner.coming_round(MODE) == number
        policy.plan_ahead(Progress())
        policy.plan(Progress())
