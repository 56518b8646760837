"""What a round asks and answers: proposals, verdicts, announcements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specgate.types.model import DraftMethod
from specgate.types.session import FinishReason

MAX_GAMMA = 64
MAX_RUN_AHEAD = 256
"""Guesses that a drafter drafts side by side."""
ALWAYS_SOLO = 2.0
"""A ``solo_below`` that no confidence reaches: the target decodes alone to the round's limit."""


TokenIds = tuple[int, ...]
MAX_BRANCHES = 64
"""Guesses, or outcomes, in one message: the contract's limit."""


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """The support of one draft distribution and its float32 weights, exactly the ones that were sampled from.

    The distribution is ``probs / sum(probs)`` with the sum in float64, in this order, on both sides.
    """

    token_ids: tuple[int, ...]
    probs: tuple[float, ...]

    @classmethod
    def certain(cls, token_id: int) -> "SparseDistribution":
        """Return the distribution of a token that was not sampled: all of it is that token."""
        return cls((token_id,), (1.0,))


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One round as the drafter sees it.

    ``token_ids`` are all tokens committed since the last message, ``position`` the committed length before
    them. ``gamma`` 0 keeps the drafter's KV warm and has no answer. ``prepare`` is how long proposals may be that
    are prepared for the next round, 0 leaves it to the drafter. ``running``, with ``gamma`` 0: stay so many tokens
    ahead, and send them in running drafts.
    """

    round: int
    position: int
    token_ids: tuple[int, ...]
    gamma: int
    stop_below: float = 0.0
    prepare: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft token ids for the positions after the committed tokens.

    ``draft_probs`` has one distribution a token in rejection mode above temperature 0, and is empty otherwise.
    ``num_prepared`` tokens, the first ones, were there when the drafter turned to the round; ``from_run_ahead``: all of
    them. ``method`` drafted it. ``draft_confidences`` are the draft's raw probabilities (temperature 1, no filters) of
    its tokens, where the round had ``stop_below`` above 0; empty if unknown. The verifier is not sent them.
    """

    draft_token_ids: tuple[int, ...] = ()
    draft_probs: tuple[SparseDistribution, ...] = ()
    from_run_ahead: bool = False
    draft_us: int = 0
    num_prepared: int = 0
    method: DraftMethod = DraftMethod.MODEL
    draft_confidences: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.draft_token_ids)

    def as_certain(self) -> "Proposal":
        """Return it with the distributions of tokens that were not sampled, as rejection mode needs them."""
        return replace(self, draft_probs=tuple(map(SparseDistribution.certain, self.draft_token_ids)))


NO_PROPOSAL = Proposal()


class AnnouncedProposal(NamedTuple):
    """What ``method`` would propose if ``token_ids``, of which there is one or more, were committed.

    ``draft_confidences`` as in a ``Proposal``.
    """

    token_ids: tuple[int, ...]
    draft_token_ids: tuple[int, ...]
    method: DraftMethod = DraftMethod.MODEL
    draft_confidences: tuple[float, ...] = ()


class Announcement(NamedTuple):
    """Proposals that were drafted before they were asked for, the likeliest first.

    ``position`` is the committed length that their tokens come after. They have ``gamma`` draft tokens, and fewer only
    where any draft would end; drafted with ``stop_below``.
    """

    position: int
    proposals: tuple[AnnouncedProposal, ...]
    gamma: int
    stop_below: float = 0.0


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One round as the verifier sees it, from the committed length ``position``.

    After its verdict the target goes on alone while its confidence is below ``solo_below``, for
    ``max_solo_tokens`` tokens at the most. With ``running_gamma`` it goes on for as many tokens in any case, and where
    it is not below takes up to so many tokens at a time from the running draft.
    """

    round: int
    position: int
    proposal: Proposal
    solo_below: float = 0.0
    max_solo_tokens: int = 0
    running_gamma: int = 0


class RunningDraft(NamedTuple):
    """What may come after the committed length ``position``, drafted without being asked for. It replaces the one
    before. ``draft_confidences`` as in a ``Proposal``. Its first ``num_awaited`` tokens are not to be verified: the
    others are of use behind them alone.
    """

    position: int
    draft_token_ids: TokenIds
    method: DraftMethod = DraftMethod.MODEL
    draft_confidences: tuple[float, ...] = ()
    num_awaited: int = 0

    def after(self, committed: Sequence[int], gamma: int) -> TokenIds:
        """Return its next tokens after ``committed``, up to ``gamma``; () if the two do not agree or it has no more."""
        drafted, num_passed = self.draft_token_ids, len(committed) - self.position
        is_within = self.num_awaited <= num_passed < len(drafted)
        if not is_within or tuple(committed[self.position :]) != drafted[:num_passed]:
            return ()
        return drafted[num_passed : num_passed + gamma]

    def proposal(self, position: int, token_ids: TokenIds) -> Proposal:
        """Return what was taken from a running draft at ``position``, with what this one knows of it."""
        first = position - self.position
        taken = slice(first, first + len(token_ids))
        known = first >= 0 and self.draft_token_ids[taken] == token_ids
        confidences = self.draft_confidences[taken] if known else ()
        return Proposal(token_ids, method=self.method, draft_confidences=confidences)


Ahead = Announcement | RunningDraft
"""What a drafter sends without being asked."""


class FollowUp(NamedTuple):
    """What is verified next if a verdict commits ``num_accepted`` draft tokens, then ``token_id``.

    If the verdict's confidence is below ``least_confidence``, the verifier waits for the next round instead.
    """

    num_accepted: int
    token_id: int
    draft_token_ids: tuple[int, ...]
    least_confidence: float = 0.0


class FollowUps(NamedTuple):
    """Rounds that may come next, sent while the round before them is verified.

    ``round`` is theirs, ``position`` the committed length that their outcomes come after; the gate as in a
    ``VerifyRequest``.
    """

    round: int
    position: int
    proposals: tuple[FollowUp, ...]
    solo_below: float = 0.0
    max_solo_tokens: int = 0

    def number_of(self, verdict: "Verdict", position: int) -> int:
        """Return the number, from 1, of the first follow-up whose outcome is ``verdict``; 0 if there is none. Its
        ``least_confidence`` is not checked.

        Args:
            position: the committed length before the verdict.
        """
        if (self.round, self.position) != (verdict.round + 1, position):
            return 0
        outcome = verdict.num_accepted, verdict.token_id
        return next((number for number, one in enumerate(self.proposals, 1) if one[:2] == outcome), 0)

    def following(self, verdict: "Verdict", position: int, length: int) -> tuple[int, VerifyRequest | None]:
        """Return the number of the follow-up of ``verdict``, and its round; 0 and None if none is sure enough.

        Args:
            position, length: the committed lengths before and after the verdict.
        """
        number = self.number_of(verdict, position)
        if not number or verdict.confidence < (one := self.proposals[number - 1]).least_confidence:
            return 0, None
        gate = self.solo_below, self.max_solo_tokens
        return number, VerifyRequest(self.round, length, Proposal(one.draft_token_ids), *gate)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The raw log-probability of an emitted token, and of the likeliest ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one forward pass of the target decided.

    ``num_accepted`` draft tokens are committed, then ``token_id``, the target's own token: recovered after a
    rejection, bonus after full acceptance, solo in a solo run. There is none when the run ended inside the accepted
    tokens. ``confidence`` is the raw probability (temperature 1, no filters) of the last token emitted,
    ``accepted_confidences`` that of each accepted one; empty if unknown. ``near_ties``
    counts the choices of this verdict whose two best scores lay within 1e-4. ``batch_sessions`` is how many sessions
    shared the forward, ``batch_rows`` how many rows they had in it (0 where prompts ran along), ``forward_us`` what it
    took; each 0 if unknown. ``follow_up`` is the number, from 1, of the follow-up that is verified next; 0 if the
    verifier waits for a round. ``prompt_logprobs`` are in the session's first verdict. ``cached_tokens`` of the prompt
    were not computed for the session; 0 if unknown. ``waited_us``: for how long the orchestrator waited for it, if
    nothing had to be asked before; it is not on the wire. ``draft_token_ids`` were taken from a running draft:
    ``num_accepted`` counts them.
    """

    round: int
    num_accepted: int = 0
    token_id: int | None = None
    confidence: float = 0.0
    solo: bool = False
    last: bool = True
    finish_reason: FinishReason | None = None
    near_ties: int = 0
    verify_us: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    batch_sessions: int = 0
    batch_rows: int = 0
    forward_us: int = 0
    accepted_confidences: tuple[float, ...] = ()
    follow_up: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0
    draft_token_ids: TokenIds = ()
    waited_us: int = 0

    @property
    def num_emitted(self) -> int:
        return self.num_accepted + (self.token_id is not None)
