"""What may come behind the verdict that is waited for: what the drafter announced of it, and what the verifier is told.

In ``shared_noise`` and greedy whatever is verified leaves the text as it is. In rejection mode above temperature 0 only
drafts are announced that were not sampled: each is verified as drafted with certainty, which leaves the law as it is
whatever the token, since it is accepted with the target's own probability of it.

A drafter may be a round further ahead: then what it announces stands behind the tokens of two rounds, and is told once
the first of them are committed.
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
    AnnouncedProposal,
    Announcement,
    DraftRequest,
    FollowUp,
    FollowUps,
    Proposal,
    RoundPlan,
    TokenIds,
    Verdict,
)

MOST_A_ROUND = 2
"""Announcements for each round that was sent: of the next one, and of one further ahead."""
MOST_KEPT = 2 * MOST_A_ROUND * MAX_BRANCHES
"""Proposals: those of two rounds, whatever a drafter announces."""


@dataclass(frozen=True, slots=True)
class Coming:
    """The ``Progress`` of a session behind a verdict that is still to come."""

    length: int
    remaining: int
    confidence: None = None


class Planned(NamedTuple):
    """A round as it would be behind one outcome."""

    plan: RoundPlan
    proposal: Proposal


class ExpectedRounds:
    """Tells follow-ups of the round that runs, and remembers what was told: once a round and position, for good.

    What a verifier goes on with is what it was told first, so what came later must not be taken for it.

    Args:
        policy: says what a round would be.
        drafter: says what it would propose for it.
    """

    def __init__(self, session: Session, drafter: Drafter, policy: Policy) -> None:
        self._session = session
        self._drafter = drafter
        self._policy = policy
        self._sent: tuple[Planned, ...] = ()
        self._sent_at: tuple[int, int] | None = None

    def tell(self, running: Proposal) -> FollowUps | None:
        """Return what is to be told of what may come behind the verdict on ``running``; None: nothing.

        All have the gate of the first one; one whose plan has another is left out.
        """
        session = self._session
        place = session.round, session.length
        if session.finished or place == self._sent_at:
            return None
        expected = self._drafter.expected(session.length)
        coming = [entry for ids in expected if (entry := self._coming(running, ids)) is not None]
        coming = [entry for entry in coming if entry[1].plan.solo_below == coming[0][1].plan.solo_below][:MAX_BRANCHES]
        if not coming:
            return None
        self._sent_at, self._sent = place, tuple(planned for _, planned in coming)
        plans = [planned.plan for planned in self._sent]
        # A solo run ends with the text, whatever its limit.
        gate = plans[0].solo_below, max(plan.max_solo_tokens for plan in plans)
        return FollowUps(session.round + 1, session.length, tuple(one for one, _ in coming), *gate)

    def followed(self, verdict: Verdict) -> Planned | None:
        """Return the round that the verifier has gone on with behind ``verdict``."""
        return self._sent[verdict.follow_up - 1] if verdict.follow_up else None

    def _coming(self, running: Proposal, token_ids: TokenIds) -> tuple[FollowUp, Planned] | None:
        """Return the round behind these tokens, if they are what a verdict on ``running`` may commit."""
        session, accepted, token_id = self._session, token_ids[:-1], token_ids[-1]
        num_accepted = len(accepted)
        if running.draft_token_ids[:num_accepted] != accepted or token_id >= session.opening_spec.vocab_size:
            return None
        coming = Coming(session.length + len(token_ids), session.remaining - len(token_ids))
        expected = self._policy.plan_ahead(coming)
        if expected is None or not expected.plan.gamma:
            return None
        plan = expected.plan
        request = DraftRequest(session.round + 1, session.length, token_ids, plan.gamma, plan.stop_below, plan.prepare)
        proposal = self._drafter.announced(request)
        if proposal is None:
            return None
        follow_up = FollowUp(num_accepted, token_id, proposal.draft_token_ids, expected.least_confidence)
        return follow_up, Planned(plan, proposal)


_Known = tuple[AnnouncedProposal, Announcement]
"""A proposal, and what it was announced in."""


class HearsAnnouncements:
    """The part of ``ports.Drafter`` that is about announcements, whatever they come by.

    Args:
        rejects: whether proposals need distributions.
    """

    def __init__(self, *, rejects: bool) -> None:
        self._announced = Announced(rejects=rejects)
        self._on_announcement: OnAnnouncement = lambda: None

    def announced(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter``."""
        return self._announced.answer(request)

    def expected(self, position: int) -> Collection[TokenIds]:
        """See ``ports.Drafter``."""
        return self._announced.expected(position)

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """See ``ports.Drafter``."""
        self._on_announcement = on_announcement

    def _commit(self, request: DraftRequest) -> None:
        self._announced.commit(request)
        self._on_announcement()

    def _add(self, announcement: Announcement) -> None:
        self._announced.add(announcement)
        self._on_announcement()


class Announced:
    """What was announced in one session and may still come about, by the tokens that are to be committed before it.

    A proposal is a function of those tokens and of ``stop_below``. So it does not matter how many rounds commit them,
    nor in which order announcements and requests cross: what begins with the tokens that are committed goes on, without
    them, and all else is dropped.

    Args:
        rejects: whether proposals need distributions.
    """

    def __init__(self, *, rejects: bool = False) -> None:
        self._rejects = rejects
        self._length = 0
        self._last: TokenIds = ()
        """The tokens that the drafter was told of last; ``_length`` counts them in."""
        self._behind: dict[TokenIds, _Known] = {}

    def expected(self, position: int) -> Collection[TokenIds]:
        """See ``ports.Drafter``."""
        return tuple(self._behind) if position == self._length else ()

    def answer(self, request: DraftRequest) -> Proposal | None:
        """See ``ports.Drafter.announced``."""
        known = self._behind.get(request.token_ids)
        if known is None or request.position != self._length:
            return None
        (_, ids, method), announcement = known
        # It has been over the wire as a float32.
        if not math.isclose(request.stop_below, announcement.stop_below, rel_tol=1e-6):
            return None
        has_ended = len(ids) < announcement.gamma
        if not request.gamma or (len(ids) < request.gamma and not has_ended):
            return None
        ids = ids[: request.gamma]
        proposal = Proposal(ids, from_run_ahead=True, num_prepared=len(ids), method=method)
        return proposal.as_certain() if self._rejects else proposal

    def commit(self, request: DraftRequest) -> None:
        """Take it that the drafter is told of the tokens of ``request``."""
        self._length, self._last = request.position + len(request.token_ids), request.token_ids
        self._behind = _going_on(self._last, self._behind)

    def add(self, announcement: Announcement) -> None:
        """Keep what can still come about."""
        num_passed = self._length - announcement.position
        if 0 <= num_passed <= len(self._last):
            passed = self._last[len(self._last) - num_passed :]
            self._behind |= _going_on(passed, {one.token_ids: (one, announcement) for one in announcement.proposals})
            for ids in list(self._behind)[: max(len(self._behind) - MOST_KEPT, 0)]:
                del self._behind[ids]


def _going_on(passed: TokenIds, behind: dict[TokenIds, _Known]) -> dict[TokenIds, _Known]:
    num_passed = len(passed)
    return {
        ids[num_passed:]: one for ids, one in behind.items() if len(ids) > num_passed and ids[:num_passed] == passed
    }
