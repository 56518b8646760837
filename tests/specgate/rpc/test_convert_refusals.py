"""What arrives out of its limits is refused by the name of its field, the value and the limit."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc import convert, convert_ahead, convert_proposal, convert_session
from specgate.rpc.validate import check_fingerprint, check_length, check_token_ids
from specgate.types import Proposal
from specgate.v1 import types_pb2
from specgate.v1.drafter_service_pb2 import Announcement, DraftResponse, DraftRound
from specgate.v1.types_pb2 import SparseDistribution, TokenLogprobs
from specgate.v1.verifier_service_pb2 import FollowUps, VerifyResponse, VerifyRound

NAN, INF = math.nan, math.inf
Case = tuple[dict[str, Any], str, str]


def cases(from_pb: Callable[[Any], object], make: Callable[..., Any], *table: Case) -> list[Any]:
    """Return a parameter for each row: the fields of the message, the field that is named, what is said of it."""
    name = getattr(from_pb, "__name__", "").removesuffix("_from_pb") or make.__name__
    return [
        pytest.param(from_pb, make(**fields), field, problem, id=f"{name}: {field}: {problem}")
        for fields, field, problem in table
    ]


def verify_round(**proposal: Any) -> VerifyRound:
    return VerifyRound(proposal=types_pb2.Proposal(**proposal))


def drawn_from(token_ids: Any = (1, 2), probs: Any = (0.5, 0.5)) -> VerifyRound:
    """A draft of one token, and the distribution that it is said to be drawn from."""
    return verify_round(draft_token_ids=(1,), draft_probs=[SparseDistribution(token_ids=token_ids, probs=probs)])


MANY = TokenLogprobs(top_token_ids=range(21))
PAIR = SparseDistribution(token_ids=(1, 2), probs=(0.5, 0.5))
ROUNDS = [
    *cases(
        convert.verify_round_from_pb,
        drawn_from,
        ({"token_ids": (), "probs": ()}, "draft_probs[0].token_ids (length)", "0 is outside [1, 4096]"),
        ({"token_ids": range(4097)}, "draft_probs[0].token_ids (length)", "4097 is outside [1, 4096]"),
        ({"probs": (0.5,)}, "draft_probs[0].probs (length)", "1 is not the 2"),
        ({"token_ids": (1, 1)}, "draft_probs[0].token_ids", "not distinct"),
        ({"token_ids": (3, 2)}, "draft_probs[0].token_ids", "draft token id 1"),
        ({"probs": (0.5, NAN)}, "draft_probs[0].probs", "nan is not positive and finite"),
        ({"probs": (NAN, 0.5)}, "draft_probs[0].probs", "nan is not positive and finite"),
        ({"probs": (0.5, INF)}, "draft_probs[0].probs", "inf is not positive and finite"),
        ({"probs": (0.5, 0.0)}, "draft_probs[0].probs", "0.0 is not positive and finite"),
    ),
    *cases(
        convert.verify_round_from_pb,
        verify_round,
        ({"draft_token_ids": range(65)}, "draft_token_ids (length)", "65 is outside [0, 64]"),
        ({"draft_token_ids": (1, 2), "draft_probs": [PAIR]}, "draft_probs (length)", "1 is neither 0 nor the 2"),
        ({"draft_token_ids": (1, 3), "draft_probs": [PAIR] * 2}, "draft_probs[1].token_ids", "draft token id 3"),
    ),
    *cases(
        convert.verify_round_from_pb,
        VerifyRound,
        ({"solo_below": NAN}, "solo_below", "nan is outside [0.0, 2.0]"),
        ({"solo_below": 2.5}, "solo_below", "2.5 is outside [0.0, 2.0]"),
    ),
    *cases(
        partial(convert.draft_round_from_pb, last_draft_token_ids=(1, 2, 3)),
        DraftRound,
        ({"num_accepted": 4}, "num_accepted", "4 is outside [0, 3]"),
        ({"gamma": 65}, "gamma", "65 is outside [0, 64]"),
        ({"prepare": 65}, "prepare", "65 is outside [0, 64]"),
        ({"stop_below": NAN}, "stop_below", "nan is outside [0.0, 2.0]"),
        ({"stop_below": -0.5}, "stop_below", "-0.5 is outside [0.0, 2.0]"),
    ),
    *cases(
        partial(convert.draft_response_from_pb, gamma=2),
        DraftResponse,
        (
            {"proposal": convert_proposal.proposal_to_pb(Proposal((1, 2, 3)))},
            "proposal.draft_token_ids (length)",
            "3 is outside [0, 2]",
        ),
        (
            {"proposal": convert_proposal.proposal_to_pb(Proposal((7,))), "num_prepared": 2},
            "num_prepared",
            "2 is outside [0, 1]",
        ),
        ({"draft_confidences": [0.5]}, "draft_confidences (length)", "1 is outside [0, 0]"),
    ),
    *cases(
        partial(convert.verdict_from_pb, num_draft_tokens=3),
        VerifyResponse,
        ({"num_accepted": 4}, "num_accepted", "4 is outside [0, 3]"),
        ({"confidence": NAN}, "confidence", "nan is outside"),
        ({"finish_reason": 99}, "finish_reason", "99 is not a known value"),
        ({"num_accepted": 2, "accepted_confidences": [0.5]}, "accepted_confidences (length)", "1 is outside [2, 2]"),
        ({"num_accepted": 1, "accepted_confidences": [1.5]}, "accepted_confidences", "1.5 is outside"),
        ({"logprobs": [TokenLogprobs()]}, "logprobs (length)", "1 is outside [0, 0]"),
        ({"token_id": 1, "logprobs": [TokenLogprobs(logprob=NAN)]}, "logprobs", "not finite"),
        # Counted before anything is made of them.
        ({"token_id": 1, "logprobs": [TokenLogprobs(logprob=NAN)] * 2}, "logprobs (length)", "2 is outside [1, 1]"),
        ({"token_id": 1, "logprobs": [TokenLogprobs(top_token_ids=[1])]}, "logprobs.top_logprobs (length)", "0 is"),
        ({"token_id": 1, "logprobs": [MANY]}, "logprobs.top_token_ids (length)", "21 is outside [0, 20]"),
    ),
]


def branches(**changes: Any) -> types_pb2.Branches:
    """Two branches of one and two draft tokens."""
    whole = {"num_accepted": (0, 3), "num_draft_tokens": (1, 2), "token_ids": (1, 2, 3, 4, 5)}
    return types_pb2.Branches(**{**whole, **changes})


def announcement(**changes: Any) -> Announcement:
    """Two proposals, of one and two tokens."""
    whole = {"num_committed": (1, 3), "num_draft_tokens": (1, 2), "token_ids": range(7), "gamma": 2}
    return Announcement(**{"position": 9, **whole, **changes})


def follow_ups(**changes: Any) -> FollowUps:
    return FollowUps(**{"branches": branches(), **changes})


AHEAD = [
    *cases(
        convert_ahead.announcement_from_pb,
        announcement,
        ({"num_committed": [1] * 65}, "announced.num_committed (length)", "65 is outside [0, 64]"),
        ({"num_committed": [1]}, "announced.num_draft_tokens (length)", "2 is outside [1, 1]"),
        ({"num_draft_tokens": [1]}, "announced.num_draft_tokens (length)", "1 is outside [2, 2]"),
        ({"num_committed": [0, 3]}, "announced.num_committed", "0 is outside [1, 130]"),
        ({"num_committed": [1, 131]}, "announced.num_committed", "131 is outside [1, 130]"),
        ({"num_draft_tokens": [0, 3]}, "announced.num_draft_tokens", "0 is outside [1, 64]"),
        ({"num_draft_tokens": [65, 1]}, "announced.num_draft_tokens", "65 is outside [1, 64]"),
        ({"token_ids": range(6)}, "announced.token_ids (length)", "6 is outside [7, 7]"),
        ({"token_ids": range(8)}, "announced.token_ids (length)", "8 is outside [7, 7]"),
        ({"gamma": 65}, "announced.gamma", "65 is outside"),
        ({"gamma": 1}, "announced.gamma", "1 is outside [2, 64]"),
        ({"stop_below": NAN}, "announced.stop_below", "nan is outside"),
        ({"draft_confidences": [0.5] * 2}, "announced.draft_confidences (length)", "2 is outside [3, 3]"),
        ({"draft_confidences": [0.5, NAN, 0.5]}, "announced.draft_confidences", "nan is outside"),
    ),
    *cases(
        convert_ahead.follow_ups_from_pb,
        lambda **changes: follow_ups(branches=branches(**changes)),
        ({"num_accepted": [0] * 65}, "follow_ups.branches.num_accepted (length)", "65 is outside [0, 64]"),
        ({"num_accepted": [0]}, "follow_ups.branches.num_draft_tokens (length)", "2 is outside [1, 1]"),
        ({"num_draft_tokens": [1, 2, 3]}, "follow_ups.branches.num_draft_tokens (length)", "3 is outside [2, 2]"),
        ({"num_accepted": []}, "follow_ups.branches.num_draft_tokens (length)", "2 is outside [0, 0]"),
        ({"num_accepted": [], "num_draft_tokens": []}, "follow_ups.branches.token_ids (length)", "5 is outside [0, 0]"),
        ({"num_draft_tokens": []}, "follow_ups.branches.token_ids (length)", "5 is no multiple of 2 branches"),
        (
            {"num_draft_tokens": [], "token_ids": [1, 2]},
            "follow_ups.branches.token_ids (length)",
            "2 is outside [4, 130]",
        ),
        ({"num_draft_tokens": [], "token_ids": [1] * 132}, "follow_ups.branches.token_ids (length)", "132 is outside"),
        ({"num_draft_tokens": [0, 3]}, "follow_ups.branches.num_draft_tokens", "0 is outside [1, 64]"),
        ({"num_draft_tokens": [65, 1]}, "follow_ups.branches.num_draft_tokens", "65 is outside [1, 64]"),
        ({"token_ids": (1, 2, 3, 4)}, "follow_ups.branches.token_ids (length)", "4 is outside [5, 5]"),
        ({"token_ids": (1, 2, 3, 4, 5, 6)}, "follow_ups.branches.token_ids (length)", "6 is outside [5, 5]"),
    ),
    *cases(
        convert_ahead.follow_ups_from_pb,
        follow_ups,
        ({"branches": branches(num_accepted=[0] * 65)}, "follow_ups.branches.num_accepted (length)", "65 is outside"),
        ({"branches": branches(token_ids=(1, 2, 3, 4))}, "follow_ups.branches.token_ids (length)", "4 is outside"),
        ({"solo_below": 3.0}, "follow_ups.solo_below", "3.0 is outside"),
        ({"least_confidences": [0.5] * 3}, "follow_ups.least_confidences (length)", "3 is outside [0, 2]"),
        ({"least_confidences": [0.5, NAN]}, "follow_ups.least_confidences", "nan is outside"),
        ({"least_confidences": [-0.5, 0.5]}, "follow_ups.least_confidences", "-0.5 is outside"),
    ),
]


PARTS = {f"part {number}": "" for number in range(33)}


def session(**changes: Any) -> types_pb2.SessionSpec:
    whole = {"prompt_token_ids": [1], "verification": types_pb2.VERIFICATION_REJECTION, "max_tokens": 1}
    return types_pb2.SessionSpec(**{**whole, **changes})


SESSIONS = [
    *cases(
        convert_session.sampling_params_from_pb,
        types_pb2.SamplingParams,
        ({"temperature": NAN}, "temperature", "nan is outside"),
        ({"top_k": (1 << 32) - 1}, "top_k", "4294967295 is outside"),
        ({"repetition_penalty": 3.4028234663852886e38}, "repetition_penalty", "e+38 is outside"),
        ({"logit_bias": {7: NAN}}, "logit_bias[7]", "nan is outside"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias (length)", "1025 is outside [0, 1024]"),
    ),
    *cases(
        partial(convert_session.session_spec_from_pb, max_sequence_tokens=8),
        session,
        ({"prompt_token_ids": []}, "prompt_token_ids (length)", "0 is outside [1, 8]"),
        ({"min_tokens": 1, "grammar": types_pb2.Grammar(regex="a")}, "min_tokens", "excludes a grammar"),
        ({"prompt_token_ids": range(9)}, "prompt_token_ids (length)", "9 is outside [1, 8]"),
        ({"output_token_ids": range(9)}, "output_token_ids (length)", "9 is outside [0, 8]"),
        ({"output_token_ids": [1, 2]}, "output_token_ids (length)", "2 is outside [0, 1]"),
        ({"verification": 0}, "verification", "0 is not one of"),
        ({"verification": 99}, "verification", "99 is not one of"),
        ({"max_tokens": 0}, "max_tokens", "0 is outside"),
        ({"stop_token_ids": range(257)}, "stop_token_ids (length)", "257 is outside [0, 256]"),
        ({"logprobs": 21}, "logprobs", "21 is outside [0, 20]"),
        ({"cache_salt": "x" * 5000}, "cache_salt (length)", "5000 is outside [0, 4096]"),
        ({"lease_token": "x" * 5000}, "lease_token (length)", "5000 is outside [0, 4096]"),
        ({"tokenizer_fingerprint": {"v": "x" * 5000}}, "tokenizer_fingerprint (length)", "5000 is outside [0, 4096]"),
        ({"sampling": types_pb2.SamplingParams(temperature=101)}, "temperature", "101.0 is outside"),
    ),
    *cases(
        convert_session.model_info_from_pb,
        types_pb2.GetModelInfoResponse,
        ({"vocab_size": 0, "context_length": 1}, "vocab_size", "0 is outside"),
        ({"vocab_size": 1, "context_length": 0}, "context_length", "0 is outside"),
        ({"eos_token_ids": range(257)}, "eos_token_ids (length)", "257 is outside [0, 256]"),
        ({"capabilities": ["x"] * 65}, "capabilities (length)", "65 is outside [0, 64]"),
        ({"tokenizer_fingerprint": PARTS}, "tokenizer_fingerprint (length)", "33 is outside [0, 32]"),
    ),
]


@pytest.mark.parametrize(("from_pb", "pb", "field", "problem"), [*ROUNDS, *AHEAD, *SESSIONS])
def test_what_is_out_of_its_limits_is_refused_by_name(
    from_pb: Callable[[Any], object], pb: Any, field: str, problem: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_pb(pb)
    assert caught.value.field == field
    assert problem in caught.value.problem


@pytest.mark.parametrize(("ids", "wrong"), [((0, 10), 10), ((-1,), -1), ((11, 3), 11)])
def test_the_first_id_outside_the_vocabulary_is_named(ids: tuple[int, ...], wrong: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"^prompt_token_ids: token id {wrong} .*\[0, 10\)"):
        check_token_ids("prompt_token_ids", ids, 10)


def test_what_is_at_its_limits_passes() -> None:
    for ids in ((), (0,), (0, 9, 3), {4: 0.5, 9: 1.0}.keys()):
        check_token_ids("prompt_token_ids", ids, 10)
    check_length("stop", ["a"], 0, 1)
    check_fingerprint("tokenizer_fingerprint", ["v" * 4096] * 32, ["ab"])
