"""What the tests of ``auto`` share: requests, told costs, records of rounds, and a session that is taught."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.costs import MeasuredCosts
from orchestrator.policy.auto.learner import Learner, Observer
from orchestrator.policy.gates import Gate
from specgate.types import NO_PROPOSAL, ForwardCost, Proposal, RoundPlan, RoundRecord, RoundTiming, Verdict

REQUEST = GenerationRequest((1,), gate=Gate.AUTO, gamma=8)
FORWARD_US, ROW_US, DRAFT_US, OVERHEAD_US = 8000, 240, 800, 400
SURE, UNSURE = 0.99, 0.1


def measured(draft_us: int = DRAFT_US, forward_us: int = FORWARD_US) -> MeasuredCosts:
    """Return what two services tell: a forward of the target, a further row of it for 3 %, and a draft token."""
    target = tuple(ForwardCost(rows, forward_us * (97 + 3 * rows) // 100) for rows in (1, 9))
    return MeasuredCosts(target, (ForwardCost(1, draft_us), ForwardCost(101, 2 * draft_us)))


@dataclass
class Drafter:
    """The state of a drafter."""

    available: bool = True
    may_return: bool = False
    context_length: int = 1 << 20
    num_unread: int = 0

    def want(self) -> None:
        """Nothing is to be done."""


THERE = Drafter()


@dataclass
class Progress:
    confidence: float | None = None
    length: int = 10
    remaining: int = 1000
    agreement: float | None = None


def a_round(
    gamma: int = 4,
    accepted: int = 2,
    before: float = SURE,
    batch: int = 1,
    pace: float = 1.0,
    draft_us: int = DRAFT_US,
    plan: RoundPlan | None = None,
    sure: tuple[float, ...] = (),
) -> RoundRecord:
    """Return a round of one of ``batch`` equal sessions on a machine that needs ``pace`` times as long for all.

    ``sure``: the draft's confidence in its tokens, where it tells.
    """
    rows = batch * (gamma + 1)
    forward_us = round(pace * (FORWARD_US + ROW_US * (rows - 1) + FORWARD_US * (batch - 1) // 10))
    verdict = Verdict(
        0,
        accepted,
        7,
        SURE,
        verify_us=forward_us,
        batch_sessions=batch,
        batch_rows=rows,
        forward_us=forward_us,
        accepted_confidences=(before,) * accepted,
    )
    timing = RoundTiming(round(pace * (draft_us * gamma + OVERHEAD_US)) + forward_us)
    proposal = Proposal((3,) * gamma, draft_confidences=sure) if gamma else NO_PROPOSAL
    return RoundRecord(plan or RoundPlan(gamma), proposal, verdict, accepted + 1, before, timing)


def solo(before: float = SURE, pace: float = 1.0) -> RoundRecord:
    """Return one token of a solo run."""
    one = a_round(0, 0, before, pace=pace)
    return replace(one, verdict=replace(one.verdict, solo=True), timing=RoundTiming())


def an_observer(learner: Learner, request: GenerationRequest = REQUEST) -> Observer:
    observer = learner.observer(request)
    assert observer is not None
    return observer


def drive(
    learner: Learner,
    accepted: Callable[[int], int],
    num_tokens: int = 400,
    before: float = SURE,
    draft_us: int = DRAFT_US,
    request: GenerationRequest = REQUEST,
) -> list[int]:
    """Decode with ``auto`` where every token is as sure as ``before``; return the γ of each token or round."""
    policy, observer, session = learner.policy(request, THERE), an_observer(learner, request), Progress(before)
    gammas: list[int] = []
    while num_tokens > 0:
        plan = policy.plan(session)
        gammas.append(plan.gamma)
        if plan.gamma:
            num_accepted = accepted(plan.gamma)
            record = a_round(plan.gamma, num_accepted, before, draft_us=draft_us, plan=plan)
            observer(record)
            num_tokens -= num_accepted + 1
        for _ in range(plan.max_solo_tokens if before < plan.solo_below else 0):
            observer(solo(before))
            gammas.append(0)
            num_tokens -= 1
    return gammas
