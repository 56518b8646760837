"""Services that lie are not believed."""

from dataclasses import replace

import pytest

from orchestrator.fake_fleet import FakeDialer
from orchestrator.fakes import FakeDrafter, FakeVerifier
from specgate.errors import (
    SpecgateError,
)
from specgate.types import DraftRequest, Proposal, SessionSpec, SparseDistribution, Verdict, Verification
from tests.orchestrator.faults import Run, verifier
from tests.orchestrator.support import emitted, make_spec, target_alone


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


async def test_verdicts_without_the_logprobs_asked_for() -> None:
    dialer = FakeDialer()
    with pytest.raises(SpecgateError, match="log-probabilities"):
        await Run(dialer, make_spec(60, logprobs=2))()
