"""Services that lie are not believed."""

from dataclasses import replace

import pytest

from orchestrator.services.checks import check_follow_up
from specgate.errors import InternalError, SpecgateError
from specgate.types import (
    DraftRequest,
    FinishReason,
    FollowUp,
    FollowUps,
    Proposal,
    SparseDistribution,
    Verdict,
    Verification,
)
from tests.support.decoding import make_spec
from tests.support.fake_fleet import FakeDialer
from tests.support.fakes import FakeDrafter, FakeVerifier
from tests.support.faults import Run, exact, verifier


def drawn(*token_ids: int, of: tuple[int, ...] = (1, 2), probs: tuple[float, ...] = (0.5, 3.0)) -> Proposal:
    """A proposal of ``token_ids``, the first of them with a distribution."""
    return Proposal(token_ids, (SparseDistribution(of, probs),))


GREEDY, REJECTION = Verification.SHARED_NOISE, Verification.REJECTION


@pytest.mark.parametrize(
    ("mode", "proposal"),
    [
        (GREEDY, Proposal((1, 2, 3, 4, 5))),
        (GREEDY, Proposal((97,))),
        (GREEDY, Proposal((-1,))),
        (GREEDY, drawn(1)),
        (REJECTION, Proposal((1,))),
        (REJECTION, drawn(1, 2)),
        (REJECTION, drawn(3)),
        (REJECTION, drawn(1, of=(1, 1))),
        (REJECTION, drawn(1, of=(1, 97))),
        (REJECTION, drawn(1, probs=(0.5,))),
        (REJECTION, drawn(1, probs=(0.5, 0.0))),
        (REJECTION, drawn(1, probs=(0.5, float("nan")))),
        (REJECTION, drawn(1, probs=(0.5, float("inf")))),
    ],
)
async def test_what_cannot_be_a_proposal(mode: Verification, proposal: Proposal) -> None:
    stats = (await lied_to(mode, proposal)).session.stats
    assert stats.drafter_failures == 1
    assert max((length for length, _ in stats.outcomes), default=0) <= 4


async def test_what_can_be_a_proposal_in_rejection_mode() -> None:
    assert (await lied_to(REJECTION, drawn(1))).session.stats.drafter_failures == 0


async def lied_to(mode: Verification, proposal: Proposal) -> Run:
    class Liar(FakeDrafter):
        async def draft(self, request: DraftRequest) -> Proposal:
            return proposal if request.gamma else Proposal()

    spec = make_spec(60, verification=mode, temperature=1.0 if mode is REJECTION else 0.0)
    return await exact(Run(FakeDialer(drafters=(Liar,)), spec))


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
        {"accepted_confidences": (0.5,)},
        {"solo": True},
        # It goes on unasked.
        {"follow_up": 1},
        # The prompt has three tokens.
        {"cached_tokens": 4},
    ],
    ids=str,
)
async def test_what_cannot_be_a_verdict(changes: dict[str, object]) -> None:
    class Liar(FakeVerifier):
        async def verify(self, request):
            yield replace(GOOD, **changes)

    one = await exact(Run(FakeDialer(verifiers=(Liar, verifier()))))
    assert one.session.stats.verifier_failovers == 1


@pytest.mark.parametrize(
    ("changes", "position", "problem"),
    [
        ({"follow_up": 3}, 9, "not said of this outcome"),
        ({"follow_up": 1}, 9, "not said of this outcome"),
        ({"follow_up": 2}, 8, "not said of this outcome"),
        ({"follow_up": 2, "round": 2}, 9, "not said of this outcome"),
        ({"follow_up": 2, "last": False}, 9, "has not ended"),
        ({"follow_up": 2, "finish_reason": FinishReason.STOP}, 9, "was the last"),
    ],
    ids=str,
)
def test_what_cannot_be_followed(changes: dict[str, object], position: int, problem: str) -> None:
    expected = FollowUps(2, 9, (FollowUp(1, 5, (1,)), FollowUp(0, 5, (2, 3))))
    check_follow_up(replace(GOOD, follow_up=2), expected, 9)
    check_follow_up(GOOD, None, 9)
    with pytest.raises(InternalError, match=problem):
        check_follow_up(replace(GOOD, **changes), expected, position)


async def test_verdicts_without_the_logprobs_asked_for() -> None:
    with pytest.raises(SpecgateError, match="log-probabilities"):
        await Run(FakeDialer(), make_spec(60, logprobs=2))()
