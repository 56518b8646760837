"""Services that lie are not believed."""

from dataclasses import replace

import pytest

from orchestrator.services.checks import check_follow_up
from specgate.errors import (
    InternalError,
    SpecgateError,
)
from specgate.types import (
    DraftRequest,
    FinishReason,
    FollowUp,
    FollowUps,
    Proposal,
    SessionSpec,
    SparseDistribution,
    Verdict,
    Verification,
)
from tests.support.decoding import emitted, make_spec, target_alone
from tests.support.fake_fleet import FakeDialer
from tests.support.fakes import FakeDrafter, FakeVerifier
from tests.support.faults import Run, verifier


def distribution(*ids: int, probs: tuple[float, ...] | None = None) -> SparseDistribution:
    return SparseDistribution(ids, probs or (1.0,) * len(ids))


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(()),
        Proposal((1, 2, 3, 4, 5)),
        Proposal((97,)),
        Proposal((-1,)),
        Proposal((1,), (distribution(1, 2),)),
    ],
)
async def test_what_cannot_be_a_proposal(proposal: Proposal) -> None:
    one = await lying_drafter(proposal, make_spec(60))
    assert one.session.stats.drafter_failures == 1


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal((1,)),
        Proposal((1, 2), (distribution(1, 2),)),
        Proposal((3,), (distribution(1, 2),)),
        Proposal((1,), (distribution(1, 1),)),
        Proposal((1,), (distribution(1, 97),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5,)),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, 0.0)),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, float("nan"))),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, float("inf"))),)),
    ],
)
async def test_what_cannot_be_a_proposal_in_rejection_mode(proposal: Proposal) -> None:
    spec = make_spec(60, verification=Verification.REJECTION, temperature=1.0)
    one = await lying_drafter(proposal, spec)
    assert one.session.stats.drafter_failures == 1


async def test_what_can_be_a_proposal_in_rejection_mode() -> None:
    spec = make_spec(60, verification=Verification.REJECTION, temperature=1.0)
    one = await lying_drafter(Proposal((1,), (distribution(1, 2, probs=(0.5, 3.0)),)), spec)
    assert one.session.stats.drafter_failures == 0


async def lying_drafter(proposal: Proposal, spec: SessionSpec) -> Run:
    class Liar(FakeDrafter):
        async def draft(self, request: DraftRequest) -> Proposal:
            return proposal if request.gamma else Proposal()

    one = Run(FakeDialer(drafters=(Liar,)), spec)
    assert emitted(await one()) == target_alone(spec)
    return one


GOOD = Verdict(1, 0, 5, confidence=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"num_accepted": 5},
        {"num_accepted": -1},
        {"token_id": 97},
        {"token_id": -1},
        {"token_id": None},
        {"token_id": None, "num_accepted": 2},
        {"confidence": float("nan")},
        {"confidence": 1.5},
        {"solo": True},
    ],
    ids=str,
)
async def test_what_cannot_be_a_verdict(changes: dict[str, object]) -> None:
    class Liar(FakeVerifier):
        async def verify(self, request):
            yield replace(GOOD, **changes)

    one = Run(FakeDialer(verifiers=(Liar, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"follow_up": 3},
        {"follow_up": 1},
        {"follow_up": 2, "last": False},
        {"follow_up": 2, "finish_reason": FinishReason.STOP},
        {"follow_up": 2, "round": 2},
    ],
    ids=str,
)
def test_what_cannot_be_followed(changes: dict[str, object]) -> None:
    expected = FollowUps(2, 9, (FollowUp(1, 5, (1,)), FollowUp(0, 5, (2, 3))))
    check_follow_up(replace(GOOD, follow_up=2), expected, 9)
    check_follow_up(GOOD, None, 9)
    with pytest.raises(InternalError, match="is followed by"):
        check_follow_up(replace(GOOD, **changes), expected, 9)


@pytest.mark.parametrize(("expected", "position"), [(None, 9), (FollowUps(2, 9, (FollowUp(0, 5, (2,)),)), 8)])
def test_nobody_goes_on_with_what_was_not_said(expected: FollowUps | None, position: int) -> None:
    with pytest.raises(InternalError, match="not said of this outcome"):
        check_follow_up(replace(GOOD, follow_up=1), expected, position)


async def test_a_verifier_that_goes_on_unasked_is_replaced() -> None:
    class Eager(FakeVerifier):
        def _follow(self, verdict, start):
            return replace(verdict, follow_up=1)

    one = Run(FakeDialer(verifiers=(Eager, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 1


async def test_verdicts_without_the_logprobs_asked_for() -> None:
    dialer = FakeDialer()
    with pytest.raises(SpecgateError, match="log-probabilities"):
        await Run(dialer, make_spec(60, logprobs=2))()
