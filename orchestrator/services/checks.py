"""Whether a service's answer is possible. An impossible one is an InternalError of that service, and it is replaced.

The checks are pure and apply to every link. So neither a hostile drafter nor a broken verifier emits a token that the
target did not choose, and no proposal reaches the verifier that it would refuse.
"""

import math

from specgate.errors import InternalError
from specgate.types import DraftRequest, FollowUps, Proposal, SessionSpec, Verdict, VerifyRequest

MAX_CONFIDENCE = 1.001
"""A probability computed in float32 may pass 1 by its rounding."""


def check_proposal(spec: SessionSpec, request: DraftRequest, proposal: Proposal) -> None:
    """Raise InternalError unless the verifier can judge ``proposal``."""
    ids = proposal.draft_token_ids
    if len(ids) > request.gamma:
        raise InternalError(f"{len(ids)} tokens were drafted, {request.gamma} asked for")
    if not ids:
        return
    _check_ids(spec, ids)
    needs_probs = spec.rejects
    if len(proposal.draft_probs) != (len(ids) if needs_probs else 0):
        raise InternalError(f"{len(ids)} tokens were drafted with {len(proposal.draft_probs)} distributions")
    for token_id, distribution in zip(ids, proposal.draft_probs, strict=False):
        support, probs = distribution.token_ids, distribution.probs
        if token_id not in support or len(set(support)) != len(support) or len(support) != len(probs):
            raise InternalError("a draft distribution does not belong to its token")
        _check_ids(spec, support)
        if not (min(probs) > 0.0 and math.isfinite(sum(probs))):
            raise InternalError("a draft distribution has a weight that is not positive and finite")


def check_verdict(spec: SessionSpec, request: VerifyRequest, verdict: Verdict, *, first: bool) -> None:
    """Raise InternalError unless ``verdict`` can answer ``request``; ``first``: it is the proposal's verdict."""
    running = verdict.draft_token_ids
    if len(running) > (0 if first and len(request.proposal) else request.running_gamma):
        raise InternalError(f"round {verdict.round} took {len(running)} tokens of a running draft")
    num_draft_tokens = len(running) or (len(request.proposal) if first else 0)
    if verdict.round != request.round or not 0 <= verdict.num_accepted <= num_draft_tokens:
        raise InternalError(
            f"round {verdict.round} accepted {verdict.num_accepted}, round {request.round} had {num_draft_tokens}"
        )
    if verdict.num_emitted == 0 or (verdict.token_id is None and verdict.finish_reason is None):
        raise InternalError("a verdict has no token of the target's own")
    if verdict.solo == (first or bool(running)) and (len(request.proposal) or running or not first):
        raise InternalError("a solo token stands where a proposal's verdict belongs, or the other way round")
    _check_ids(spec, (*running[: verdict.num_accepted], verdict.token_id or 0))
    if not 0.0 <= verdict.confidence <= MAX_CONFIDENCE:
        raise InternalError(f"confidence {verdict.confidence} is outside [0, 1]")
    if len(verdict.accepted_confidences) not in (0, verdict.num_accepted):
        raise InternalError(
            f"{len(verdict.accepted_confidences)} confidences for {verdict.num_accepted} accepted tokens"
        )
    if verdict.cached_tokens > len(spec.prompt_token_ids):
        raise InternalError(f"{verdict.cached_tokens} tokens of a prompt of {len(spec.prompt_token_ids)} were cached")
    if spec.logprobs is not None and len(verdict.logprobs) != verdict.num_emitted:
        raise InternalError(f"{len(verdict.logprobs)} log-probabilities for {verdict.num_emitted} tokens")


def check_follow_up(verdict: Verdict, expected: FollowUps | None, position: int) -> None:
    """Raise InternalError unless the verifier may begin the follow-up that ``verdict`` names.

    Args:
        expected: the follow-ups that it was sent last.
        position: the committed length before the verdict.
    """
    number = verdict.follow_up
    if not number:
        return
    if expected is None or expected.number_of(verdict, position) != number:
        raise InternalError(f"round {verdict.round} is followed by number {number}, which was not said of this outcome")
    if not verdict.last or verdict.finish_reason is not None:
        raise InternalError(f"round {verdict.round} is followed by another one, and has not ended or was the last")


def _check_ids(spec: SessionSpec, ids: tuple[int, ...]) -> None:
    if min(ids) < 0 or max(ids) >= spec.vocab_size:
        raise InternalError(f"a token id of {max(ids)} is outside the vocabulary of {spec.vocab_size}")
