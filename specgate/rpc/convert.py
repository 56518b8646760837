"""Domain <-> protobuf for the rounds of a session, on the hot path: the work per token is done in C.

Every ``*_from_pb`` raises InvalidArgument, naming field, value and limit, before it copies anything of size.
Token ids are not held against a vocabulary here: the services know it (``validate.check_token_ids``).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from specgate.errors import InvalidArgument
from specgate.rpc.convert_proposal import proposal_from_pb, proposal_to_pb
from specgate.rpc.validate import MAX_SEQUENCE_TOKENS, check_length
from specgate.types import (
    ALWAYS_SOLO,
    MAX_GAMMA,
    MAX_LOGPROBS,
    DraftMethod,
    DraftRequest,
    FinishReason,
    Proposal,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
    check_range,
)
from specgate.v1 import drafter_service_pb2, verifier_service_pb2
from specgate.v1 import types_pb2 as pb2

MAX_CONFIDENCE = 1.001
"""A probability computed in float32 may pass 1 by its rounding."""
MAX_UINT32 = (1 << 32) - 1

# By name, which both sides share: method "layer-skip" is DRAFT_METHOD_LAYER_SKIP.
_FINISH_REASON_TO_PB: dict[FinishReason | None, pb2.FinishReason] = {
    None: pb2.FINISH_REASON_UNSPECIFIED,
    **{reason: getattr(pb2, f"FINISH_REASON_{reason.name}") for reason in FinishReason},
}
_FINISH_REASON_FROM_PB = {value: reason for reason, value in _FINISH_REASON_TO_PB.items()}
_METHOD_TO_PB: dict[DraftMethod, pb2.DraftMethod] = {
    method: getattr(pb2, f"DRAFT_METHOD_{method.name}") for method in DraftMethod
}
_METHOD_FROM_PB = {value: method for method, value in _METHOD_TO_PB.items()}


def draft_round_to_pb(request: DraftRequest, num_accepted: int) -> drafter_service_pb2.DraftRound:
    """Return the wire's message.

    ``num_accepted`` is how many leading ``request.token_ids`` equal the last proposal: they are not sent.
    """
    return drafter_service_pb2.DraftRound(
        round=request.round,
        position=request.position,
        num_accepted=num_accepted,
        token_ids=request.token_ids[num_accepted:],
        gamma=request.gamma,
        stop_below=request.stop_below,
        prepare=request.prepare,
        running=request.running,
    )


def draft_round_from_pb(pb: drafter_service_pb2.DraftRound, last_draft_token_ids: tuple[int, ...]) -> DraftRequest:
    """Return the domain's value; ``last_draft_token_ids`` is the proposal that this round accepts from."""
    check_range("num_accepted", pb.num_accepted, 0, len(last_draft_token_ids))
    check_length("token_ids", pb.token_ids, 0, MAX_SEQUENCE_TOKENS)
    check_range("gamma", pb.gamma, 0, MAX_GAMMA)
    check_range("stop_below", pb.stop_below, 0.0, ALWAYS_SOLO)
    check_range("prepare", pb.prepare, 0, MAX_GAMMA)
    check_range("running", pb.running, 0, 0 if pb.gamma else MAX_GAMMA)
    token_ids = last_draft_token_ids[: pb.num_accepted] + tuple(pb.token_ids)
    return DraftRequest(pb.round, pb.position, token_ids, pb.gamma, pb.stop_below, pb.prepare, pb.running)


def draft_response_to_pb(round_number: int, proposal: Proposal) -> drafter_service_pb2.DraftResponse:
    """Return the answer to round ``round_number``."""
    return drafter_service_pb2.DraftResponse(
        round=round_number,
        proposal=proposal_to_pb(proposal),
        from_run_ahead=proposal.from_run_ahead,
        draft_us=min(proposal.draft_us, MAX_UINT32),
        num_prepared=proposal.num_prepared,
        method=draft_method_to_pb(proposal.method),
        draft_confidences=proposal.draft_confidences,
    )


def draft_response_from_pb(pb: drafter_service_pb2.DraftResponse, gamma: int = MAX_GAMMA) -> Proposal:
    """Return the proposal of up to ``gamma`` tokens. ``pb.round`` is not checked."""
    check_length("proposal.draft_token_ids", pb.proposal.draft_token_ids, 0, gamma)
    proposal = proposal_from_pb(pb.proposal)
    check_range("num_prepared", pb.num_prepared, 0, len(proposal))
    return replace(
        proposal,
        from_run_ahead=pb.from_run_ahead,
        draft_us=pb.draft_us,
        num_prepared=pb.num_prepared,
        method=draft_method_from_pb(pb.method),
        draft_confidences=confidences_from_pb("draft_confidences", pb.draft_confidences, len(proposal)),
    )


def confidences_from_pb(field: str, confidences: Collection[float], num_tokens: int) -> tuple[float, ...]:
    """Return the confidences of so many tokens: one a token, or none."""
    if confidences:
        check_length(field, confidences, num_tokens, num_tokens)
    for confidence in confidences:
        check_range(field, confidence, 0.0, MAX_CONFIDENCE)
    return tuple(confidences)


def verify_round_to_pb(request: VerifyRequest) -> verifier_service_pb2.VerifyRound:
    return verifier_service_pb2.VerifyRound(
        round=request.round,
        position=request.position,
        proposal=proposal_to_pb(request.proposal),
        solo_below=request.solo_below,
        max_solo_tokens=request.max_solo_tokens,
        running_gamma=request.running_gamma,
    )


def verify_round_from_pb(pb: verifier_service_pb2.VerifyRound) -> VerifyRequest:
    check_range("solo_below", pb.solo_below, 0.0, ALWAYS_SOLO)
    check_range("running_gamma", pb.running_gamma, 0, MAX_GAMMA)
    proposal = proposal_from_pb(pb.proposal)
    return VerifyRequest(pb.round, pb.position, proposal, pb.solo_below, pb.max_solo_tokens, pb.running_gamma)


def token_logprobs_to_pb(logprobs: TokenLogprobs) -> pb2.TokenLogprobs:
    return pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=[token_id for token_id, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def token_logprobs_from_pb(pb: pb2.TokenLogprobs) -> TokenLogprobs:
    check_length("logprobs.top_token_ids", pb.top_token_ids, 0, MAX_LOGPROBS)
    size = len(pb.top_token_ids)
    check_length("logprobs.top_logprobs", pb.top_logprobs, size, size)
    if not math.isfinite(pb.logprob + sum(pb.top_logprobs)):
        raise InvalidArgument("logprobs", "hold a value that is not finite")
    return TokenLogprobs(pb.logprob, tuple(zip(pb.top_token_ids, pb.top_logprobs, strict=True)))


def verdict_to_pb(verdict: Verdict) -> verifier_service_pb2.VerifyResponse:
    return verifier_service_pb2.VerifyResponse(
        round=verdict.round,
        num_accepted=verdict.num_accepted,
        token_id=verdict.token_id,
        confidence=verdict.confidence,
        solo=verdict.solo,
        last=verdict.last,
        finish_reason=finish_reason_to_pb(verdict.finish_reason),
        near_ties=verdict.near_ties,
        verify_us=min(verdict.verify_us, MAX_UINT32),
        logprobs=[token_logprobs_to_pb(logprobs) for logprobs in verdict.logprobs],
        batch_sessions=verdict.batch_sessions,
        batch_rows=verdict.batch_rows,
        forward_us=min(verdict.forward_us, MAX_UINT32),
        accepted_confidences=verdict.accepted_confidences,
        follow_up=verdict.follow_up,
        cached_tokens=verdict.cached_tokens,
        draft_token_ids=verdict.draft_token_ids,
    )


def verdict_from_pb(pb: verifier_service_pb2.VerifyResponse, num_draft_tokens: int = MAX_GAMMA) -> Verdict:
    """Return the domain's value; ``num_draft_tokens`` were proposed, and no more can have been accepted."""
    check_length("draft_token_ids", pb.draft_token_ids, 0, MAX_GAMMA)
    check_range("num_accepted", pb.num_accepted, 0, len(pb.draft_token_ids) or num_draft_tokens)
    check_range("confidence", pb.confidence, 0.0, MAX_CONFIDENCE)
    if pb.logprobs:
        num_emitted = pb.num_accepted + pb.HasField("token_id")
        check_length("logprobs", pb.logprobs, num_emitted, num_emitted)
    return Verdict(
        round=pb.round,
        num_accepted=pb.num_accepted,
        token_id=pb.token_id if pb.HasField("token_id") else None,
        confidence=pb.confidence,
        solo=pb.solo,
        last=pb.last,
        finish_reason=_finish_reason_from_pb(pb.finish_reason),
        near_ties=pb.near_ties,
        verify_us=pb.verify_us,
        logprobs=tuple(map(token_logprobs_from_pb, pb.logprobs)),
        batch_sessions=pb.batch_sessions,
        batch_rows=pb.batch_rows,
        forward_us=pb.forward_us,
        accepted_confidences=confidences_from_pb("accepted_confidences", pb.accepted_confidences, pb.num_accepted),
        follow_up=pb.follow_up,
        cached_tokens=pb.cached_tokens,
        draft_token_ids=tuple(pb.draft_token_ids),
    )


def prompt_logprobs_to_pb(logprobs: Sequence[TokenLogprobs]) -> verifier_service_pb2.VerifyResponse:
    """Return the wire's message of some tokens of the prompt."""
    return verifier_service_pb2.VerifyResponse(prompt_logprobs=map(token_logprobs_to_pb, logprobs))


def prompt_logprobs_from_pb(pb: verifier_service_pb2.VerifyResponse, most: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of the prompt's next tokens, at most ``most``; () if the message is a verdict."""
    check_length("prompt_logprobs", pb.prompt_logprobs, 0, most)
    return tuple(map(token_logprobs_from_pb, pb.prompt_logprobs))


def draft_method_to_pb(method: DraftMethod) -> pb2.DraftMethod:
    return _METHOD_TO_PB[method]


def draft_method_from_pb(value: pb2.DraftMethod) -> DraftMethod:
    """Return the domain's enum value; an unknown one, of a newer service, counts as a model."""
    return _METHOD_FROM_PB.get(value, DraftMethod.MODEL)


def finish_reason_to_pb(reason: FinishReason | None) -> pb2.FinishReason:
    """Return the wire's enum value; None, not ended, is unspecified."""
    return _FINISH_REASON_TO_PB[reason]


def _finish_reason_from_pb(value: pb2.FinishReason) -> FinishReason | None:
    try:
        return _FINISH_REASON_FROM_PB[value]
    except KeyError:
        raise InvalidArgument("finish_reason", f"{int(value)} is not a known value") from None
