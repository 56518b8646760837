"""Rounds that may follow the pending verdict: what the drafter announced of them, and what the verifier is sent.

In ``shared_noise`` and greedy any draft may be verified, the text stays the same. In rejection mode above temperature 0
only drafts that were not sampled are announced. Each is verified as if drafted with certainty: it is accepted with the
target's own probability, so the distribution stays the target's.

A drafter may be two rounds ahead. Then its announcement depends on the tokens of two rounds, and is sent once those of
the first one are committed.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.decode.ports import Drafter, OnAnnouncement
from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy
from specgate.types import (
    MAX_BRANCHES,
    Ahead,
    AnnouncedProposal,
    Announcement,
    DraftRequest,
    FollowUp,
    FollowUps,
    Proposal,
    RoundPlan,
    RunningDraft,
    TokenIds,
    Verdict,
)

MAX_ANNOUNCEMENTS_PER_ROUND = 2
"""One of the next round, and one of the round after it."""
MAX_KEPT = 2 * MAX_ANNOUNCEMENTS_PER_ROUND * MAX_BRANCHES
"""Proposals: those of two rounds, whatever a drafter announces."""


@dataclass(frozen=True, slots=True)
class ExpectedProgress:
    """The ``Progress`` of a session after a verdict that is still to come."""

    length: int
    remaining: int
    agreement: float
    confidence: None = None


class ExpectedRound(NamedTuple):
    """A round as it would be after one outcome of the pending verdict."""

    plan: RoundPlan
    proposal: Proposal


class Lookahead:
    """Chooses the follow-ups of the pending round, once per round and position, and remembers them.

    A verifier keeps the first follow-ups that it gets for a round, so later ones must not replace them here.

    Args:
        policy: says what a round would be.
        drafter: says what it would propose for it.
    """

    def __init__(self, session: Session, drafter: Drafter, policy: Policy) -> None:
        self._session = session
        self._drafter = drafter
        self._policy = policy
        self._sent: tuple[ExpectedRound, ...] = ()
        self._sent_at: tuple[int, int] | None = None

    def follow_ups(self, pending: Proposal) -> FollowUps | None:
        """Return what to send of the rounds that may follow the verdict on ``pending``; None: nothing.

        All have the gate of the first one; those whose plan has another gate are left out.
        """
        session = self._session
        place = session.round, session.length
        if session.finished or place == self._sent_at:
            return None
        outcomes = self._drafter.expected(session.length)
        expected = [pair for ids in outcomes if (pair := self._expected_round(pending, ids)) is not None]
        expected = [pair for pair in expected if pair[1].plan.solo_below == expected[0][1].plan.solo_below]
        expected = expected[:MAX_BRANCHES]
        if not expected:
            return None
        self._sent_at, self._sent = place, tuple(one for _, one in expected)
        plans = [one.plan for one in self._sent]
        # A solo run ends with the text, whatever its limit.
        gate = plans[0].solo_below, max(plan.max_solo_tokens for plan in plans)
        return FollowUps(session.round + 1, session.length, tuple(follow_up for follow_up, _ in expected), *gate)

    def followed(self, verdict: Verdict) -> ExpectedRound | None:
        """Return the round that the verifier has begun by itself after ``verdict``; None: it waits."""
        return self._sent[verdict.follow_up - 1] if verdict.follow_up else None

    def _expected_round(self, pending: Proposal, token_ids: TokenIds) -> tuple[FollowUp, ExpectedRound] | None:
        """Return the round after ``token_ids``, if a verdict on ``pending`` may commit them."""
        session, accepted, token_id = self._session, token_ids[:-1], token_ids[-1]
        num_accepted = len(accepted)
        if pending.draft_token_ids[:num_accepted] != accepted or token_id >= session.opening_spec.vocab_size:
            return None
        progress = ExpectedProgress(
            session.length + len(token_ids), session.remaining - len(token_ids), session.agreement
        )
        expected = self._policy.plan_ahead(progress)
        if expected is None or not expected.plan.gamma:
            return None
        plan = expected.plan
        request = DraftRequest(session.round + 1, session.length, token_ids, plan.gamma, plan.stop_below, plan.prepare)
        proposal = self._drafter.announced(request)
        if proposal is None:
            return None
        follow_up = FollowUp(num_accepted, token_id, proposal.draft_token_ids, expected.least_confidence)
        return follow_up, ExpectedRound(plan, proposal)


class Announcer:
    """The part of ``ports.Drafter`` about announcements: those of one session that may still come true.

    They are kept by the tokens that must be committed first. A proposal depends on those tokens and on ``stop_below``
    alone. So it does not matter how many rounds commit them, nor in which order announcements and requests arrive: a
    proposal whose tokens begin with the committed ones stays, without them, and the others are dropped.

    Args:
        rejects: whether proposals need distributions.
    """

    def __init__(self, *, rejects: bool = False) -> None:
        self._rejects = rejects
        self._length = 0
        self._last_sent: TokenIds = ()
        """The tokens that the drafter was sent last; ``_length`` includes them."""
        self._known: dict[TokenIds, _Announced] = {}
        self.running: RunningDraft | None = None
        """See ``ports.Drafter``."""
        self._on_announcement: OnAnnouncement = lambda: None

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """See ``ports.Drafter``."""
        self._on_announcement = on_announcement

    def expected(self, position: int) -> Collection[TokenIds]:
        """See ``ports.Drafter``."""
        return tuple(self._known) if position == self._length else ()

    def announced(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter``."""
        known = self._known.get(request.token_ids)
        if known is None or request.position != self._length:
            return None
        (_, ids, method, confidences), announcement = known
        # The announced value was rounded to a float32 on the wire.
        if not math.isclose(request.stop_below, announcement.stop_below, rel_tol=1e-6):
            return None
        has_ended = len(ids) < announcement.gamma
        if not request.gamma or (len(ids) < request.gamma and not has_ended):
            return None
        ids, confidences = ids[: request.gamma], confidences[: request.gamma]
        proposal = Proposal(
            ids, from_run_ahead=True, num_prepared=len(ids), method=method, draft_confidences=confidences
        )
        return proposal.as_certain() if self._rejects else proposal

    def commit(self, request: DraftRequest) -> None:
        """Keep what can come true after the tokens of ``request``, which the drafter is sent."""
        self._length, self._last_sent = request.position + len(request.token_ids), request.token_ids
        self._known = _still_possible(self._last_sent, self._known)
        self._on_announcement()

    def add(self, ahead: Ahead) -> None:
        """Keep a running draft, or those proposals of an announcement that can still come true."""
        if isinstance(ahead, RunningDraft):
            self.running = ahead
        else:
            self._add(ahead)
        self._on_announcement()

    def _add(self, announcement: Announcement) -> None:
        num_passed = self._length - announcement.position
        if 0 <= num_passed <= len(self._last_sent):
            passed = self._last_sent[len(self._last_sent) - num_passed :]
            new = {one.token_ids: (one, announcement) for one in announcement.proposals}
            self._known |= _still_possible(passed, new)
            for ids in list(self._known)[: max(len(self._known) - MAX_KEPT, 0)]:
                del self._known[ids]


_Announced = tuple[AnnouncedProposal, Announcement]
"""A proposal, and the announcement that brought it."""


def _still_possible(passed: TokenIds, known: dict[TokenIds, _Announced]) -> dict[TokenIds, _Announced]:
    """Return the proposals whose tokens begin with ``passed`` and go on, without those."""
    num_passed = len(passed)
    return {ids[num_passed:]: one for ids, one in known.items() if len(ids) > num_passed and ids[:num_passed] == passed}
