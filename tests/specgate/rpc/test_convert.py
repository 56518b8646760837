"""Rounds: what goes out comes back the same, and what is out of its limits is refused by name."""

import math
import struct
from typing import Any

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc import convert
from specgate.types import (
    MAX_GAMMA,
    DraftRequest,
    FinishReason,
    Proposal,
    SparseDistribution,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
)
from specgate.v1 import drafter_service_pb2, types_pb2, verifier_service_pb2
from tests.specgate.rpc.wire import over_the_wire, refused


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


DISTRIBUTION = SparseDistribution((7, 0, 4_000_000_000), tuple(map(float32, (0.7, 0.2, 1e-30))))
GREEDY = Proposal((7, 0, 7), from_run_ahead=True, draft_us=1234, num_prepared=2)
SAMPLED = Proposal((7, 0), (DISTRIBUTION, DISTRIBUTION))
FULL = Proposal(tuple(range(MAX_GAMMA)))


def test_a_distribution_survives_exactly() -> None:
    pb = over_the_wire(convert.sparse_distribution_to_pb(DISTRIBUTION))
    assert convert.sparse_distribution_from_pb(pb) == DISTRIBUTION


@pytest.mark.parametrize("proposal", [Proposal(), Proposal((0,)), SAMPLED, FULL])
def test_a_proposal_survives(proposal: Proposal) -> None:
    assert convert.proposal_from_pb(over_the_wire(convert.proposal_to_pb(proposal))) == proposal


@pytest.mark.parametrize("proposal", [GREEDY, SAMPLED, FULL])
def test_a_draft_response_survives(proposal: Proposal) -> None:
    pb = over_the_wire(convert.draft_response_to_pb(9, proposal))
    assert pb.round == 9
    assert convert.draft_response_from_pb(pb) == proposal


@pytest.mark.parametrize("proposal", [Proposal(), Proposal((5, 6), draft_us=0), SAMPLED])
def test_a_verify_round_survives(proposal: Proposal) -> None:
    request = VerifyRequest((1 << 64) - 1, 100, proposal, solo_below=0.5, max_solo_tokens=32)
    assert convert.verify_round_from_pb(over_the_wire(convert.verify_round_to_pb(request))) == request


@pytest.mark.parametrize("num_accepted", [0, 1, 2])
def test_accepted_tokens_are_not_sent_again(num_accepted: int) -> None:
    request = DraftRequest(3, 100, (7, 8, 0), gamma=5, stop_below=0.25, prepare=8, foreseen=True)
    pb = over_the_wire(convert.draft_round_to_pb(request, num_accepted))
    assert list(pb.token_ids) == list(request.token_ids[num_accepted:])
    assert convert.draft_round_from_pb(pb, (7, 8, 9)) == request


VERDICTS = [
    Verdict(1, last=True),
    Verdict(
        1,
        num_accepted=2,
        token_id=0,
        confidence=0.5,
        near_ties=1,
        verify_us=77,
        last=False,
        batch_sessions=9,
        batch_rows=40,
        forward_us=66,
        accepted_confidences=(0.25, 1.0),
    ),
    Verdict(2, token_id=4_000_000_000, confidence=1.0, solo=True, finish_reason=FinishReason.LENGTH),
    Verdict(3, num_accepted=1, confidence=0.25, finish_reason=FinishReason.STOP),
    Verdict(
        4,
        num_accepted=1,
        token_id=9,
        logprobs=(TokenLogprobs(-0.5), TokenLogprobs(-1.5, ((3, -0.25), (9, -1.5)))),
    ),
]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_survives(verdict: Verdict) -> None:
    assert convert.verdict_from_pb(over_the_wire(convert.verdict_to_pb(verdict))) == verdict


def test_no_more_is_prepared_than_is_proposed() -> None:
    pb = convert.draft_response_to_pb(1, Proposal((7, 7), num_prepared=3))
    refused(lambda: convert.draft_response_from_pb(pb), "num_prepared", "3 is outside [0, 2]")


def test_a_duration_too_long_for_its_field_is_cut() -> None:
    assert convert.draft_response_to_pb(1, Proposal((1,), draft_us=1 << 40)).draft_us == (1 << 32) - 1
    assert convert.verdict_to_pb(Verdict(1, verify_us=1 << 40)).verify_us == (1 << 32) - 1


def distribution(token_ids: Any = (1, 2), probs: Any = (0.5, 0.5)) -> types_pb2.SparseDistribution:
    return types_pb2.SparseDistribution(token_ids=token_ids, probs=probs)


@pytest.mark.parametrize(
    ("pb", "field", "problem"),
    [
        (distribution((), ()), "distribution.token_ids", "0 is outside [1, 4096]"),
        (distribution(range(4097), [0.1] * 4097), "distribution.token_ids", "4097 is outside"),
        (distribution(probs=(0.5,)), "distribution.probs", "1 is not the 2"),
        (distribution((1, 1)), "distribution.token_ids", "not distinct"),
        (distribution(probs=(0.5, math.nan)), "distribution.probs", "nan"),
        (distribution(probs=(math.nan, 0.5)), "distribution.probs", "nan"),
        (distribution(probs=(math.inf, -math.inf)), "distribution.probs", "inf"),
        (distribution(probs=(0.5, 0.0)), "distribution.probs", "0.0 is not positive"),
        (distribution(probs=(0.5, -0.5)), "distribution.probs", "-0.5 is not positive"),
    ],
)
def test_a_bad_distribution_is_refused(pb: types_pb2.SparseDistribution, field: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.sparse_distribution_from_pb(pb)
    assert caught.value.field.startswith(field)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("pb", "field", "problem"),
    [
        (types_pb2.Proposal(draft_token_ids=range(65)), "draft_token_ids (length)", "65 is outside [0, 64]"),
        (
            types_pb2.Proposal(draft_token_ids=(1, 2), draft_probs=[distribution()]),
            "draft_probs (length)",
            "1 is neither 0 nor the 2",
        ),
        (
            types_pb2.Proposal(draft_token_ids=(1, 3), draft_probs=[distribution(), distribution()]),
            "draft_probs[1].token_ids",
            "draft token id 3",
        ),
        (
            types_pb2.Proposal(draft_token_ids=(1,), draft_probs=[distribution(probs=(0.5, math.nan))]),
            "draft_probs[0].probs",
            "nan",
        ),
    ],
)
def test_a_bad_proposal_is_refused(pb: types_pb2.Proposal, field: str, problem: str) -> None:
    refused(lambda: convert.proposal_from_pb(pb), field, problem)
    refused(lambda: convert.verify_round_from_pb(verifier_service_pb2.VerifyRound(proposal=pb)), field, problem)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"num_accepted": 4}, "num_accepted", "4 is outside [0, 3]"),
        ({"gamma": 65}, "gamma", "65 is outside [0, 64]"),
        ({"prepare": 65}, "prepare", "65 is outside [0, 64]"),
        ({"stop_below": math.nan}, "stop_below", "nan is outside [0.0, 2.0]"),
        ({"stop_below": -0.1}, "stop_below", "is outside [0.0, 2.0]"),
        ({"stop_below": math.inf}, "stop_below", "inf is outside [0.0, 2.0]"),
    ],
)
def test_a_bad_draft_round_is_refused(changes: dict[str, Any], field: str, problem: str) -> None:
    pb = drafter_service_pb2.DraftRound(**changes)
    refused(lambda: convert.draft_round_from_pb(pb, (1, 2, 3)), field, problem)


@pytest.mark.parametrize("solo_below", [math.nan, -1.0, 2.5])
def test_a_bad_gate_is_refused(solo_below: float) -> None:
    pb = verifier_service_pb2.VerifyRound(solo_below=solo_below)
    refused(lambda: convert.verify_round_from_pb(pb), "solo_below", "is outside [0.0, 2.0]")


def test_a_drafter_that_sends_nothing_or_too_much_is_refused() -> None:
    pb = convert.draft_response_to_pb(1, Proposal((1, 2, 3)))
    refused(lambda: convert.draft_response_from_pb(pb, gamma=2), "proposal.draft_token_ids (length)", "[1, 2]")
    empty = drafter_service_pb2.DraftResponse(round=1)
    refused(lambda: convert.draft_response_from_pb(empty), "proposal.draft_token_ids (length)", "0 is")


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"num_accepted": 4}, "num_accepted", "4 is outside [0, 3]"),
        ({"confidence": math.nan}, "confidence", "nan"),
        ({"confidence": 1.5}, "confidence", "1.5"),
        ({"finish_reason": 99}, "finish_reason", "99"),
        ({"num_accepted": 2, "accepted_confidences": [0.5]}, "accepted_confidences (length)", "1 is outside [2, 2]"),
        ({"num_accepted": 1, "accepted_confidences": [math.nan]}, "accepted_confidences", "nan"),
        ({"num_accepted": 1, "accepted_confidences": [1.5]}, "accepted_confidences", "1.5"),
        ({"logprobs": [types_pb2.TokenLogprobs(logprob=-1.0)]}, "logprobs (length)", "[0, 0]"),
        ({"token_id": 1, "logprobs": [types_pb2.TokenLogprobs(logprob=math.nan)]}, "logprobs", "not finite"),
        # Counted before anything is made of them.
        ({"token_id": 1, "logprobs": [types_pb2.TokenLogprobs(logprob=math.nan)] * 2}, "logprobs (length)", "[1, 1]"),
        (
            {"token_id": 1, "logprobs": [types_pb2.TokenLogprobs(top_token_ids=[1])]},
            "logprobs.top_logprobs (length)",
            "0 is outside [1, 1]",
        ),
        (
            {"token_id": 1, "logprobs": [types_pb2.TokenLogprobs(top_token_ids=range(21))]},
            "logprobs.top_token_ids (length)",
            "21 is outside [0, 20]",
        ),
    ],
)
def test_a_bad_verdict_is_refused(changes: dict[str, Any], field: str, problem: str) -> None:
    pb = verifier_service_pb2.VerifyResponse(**changes)
    refused(lambda: convert.verdict_from_pb(pb, num_draft_tokens=3), field, problem)
