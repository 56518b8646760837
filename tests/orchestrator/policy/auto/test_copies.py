"""``auto`` where the drafter copies: nothing is asked, and what has arrived is taken where it pays."""

from dataclasses import replace

from orchestrator.policy.auto.costs import LEAST_RUN
from orchestrator.policy.auto.learner import MAX_CHOICE, Learner
from orchestrator.policy.gates import Policy, make_policy
from specgate.types import RoundPlan, WhyAlone
from tests.orchestrator.policy.auto.support import (
    FORWARD_US,
    REQUEST,
    SURE,
    Drafter,
    Progress,
    a_round,
    an_observer,
    measured,
    solo,
)

GAMMA = 8
"""What the request allows; how much of it is drafted says the evidence."""


def a_learner(row_share: float = 0.03) -> Learner:
    """Return one of a target whose further rows take so much of a forward, and of a drafter that copies."""
    costs = measured(draft_us=1)
    one, wide = costs.target
    told = costs._replace(
        round_trip_us=10.0, target=(one, wide._replace(forward_us=int(FORWARD_US * (1 + row_share * (wide.rows - 1)))))
    )
    return Learner(lambda: told, copies=lambda: True)


def a_policy(learner: Learner, drafter: Drafter | None = None) -> Policy:
    return make_policy(REQUEST, drafter or Drafter(), learner)


def test_the_target_takes_what_has_arrived_and_never_waits() -> None:
    policy = a_policy(a_learner())
    assert policy.plan(Progress(SURE)) == RoundPlan(
        0, 0.0, 0.0, LEAST_RUN, prepare=GAMMA, why_alone=WhyAlone.NO_COPY, running_gamma=GAMMA, ahead=GAMMA
    )
    assert policy.plan_ahead(Progress()) is None


def test_it_wants_its_drafter_when_it_plans() -> None:
    class Absent(Drafter):
        num_wanted = 0

        def want(self) -> None:
            self.num_wanted += 1

    drafter = Absent(available=False)
    policy = a_policy(a_learner(), drafter)
    assert policy.plan(Progress(SURE)).why_alone is WhyAlone.NO_DRAFTER
    assert drafter.num_wanted == 1


def test_where_nothing_is_said_copies_may_be_longer_than_other_drafts() -> None:
    for gamma, longest in ((None, MAX_CHOICE), (40, MAX_CHOICE), (3, 3)):
        policy = make_policy(replace(REQUEST, gamma=gamma), Drafter(), a_learner())
        assert policy.plan(Progress(SURE)).prepare == longest


def test_a_text_that_was_decoded_alone_says_nothing_of_copies() -> None:
    learner = a_learner()
    observe, policy = an_observer(learner), a_policy(learner)
    for _ in range(300):
        observe(solo())
    assert policy.plan(Progress(SURE)).prepare == GAMMA


def test_copies_that_are_wrong_are_not_verified_any_more_but_tried_now_and_then() -> None:
    # Where a further row is dear: wide forwards pay for drafts that stand alone.
    learner = a_learner(row_share=0.5)
    observe, policy = an_observer(learner), a_policy(learner)
    wrong = replace(a_round(4, 0, draft_us=0), plan=RoundPlan(4))
    for _ in range(60):
        observe(wrong)
    plans = []
    for _ in range(200):
        plans.append(policy.plan(Progress(SURE)))
        for _ in range(plans[-1].max_solo_tokens):
            observe(solo())
    assert min(plan.max_solo_tokens for plan in plans) == LEAST_RUN
    told = sum(plan.keeps_warm for plan in plans)
    assert 0 < told < len(plans) // 20
    assert {plan.gamma for plan in plans} == {0}


def test_services_without_running_drafts_are_asked() -> None:
    costs = measured(draft_us=1)
    policy = a_policy(Learner(lambda: costs, copies=lambda: True))
    assert policy.plan(Progress(SURE)).gamma > 0
