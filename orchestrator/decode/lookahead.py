"""What may come behind the verdict that is waited for: what the drafter announced of it, and what the verifier is told.

In ``shared_noise`` and greedy alone, where whatever is verified leaves the text as it is: in rejection mode above
temperature 0 nothing is announced.

A drafter may be further ahead than it was told: behind the first proposal of an announcement it makes another one,
which holds once that proposal was asked for as a whole.
"""

from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.decode.ports import Drafter
from orchestrator.decode.session import Session
from orchestrator.policy.gates import ExpectedPlan, Policy
from specgate.errors import InvalidArgument
from specgate.types import (
    AnnouncedProposal,
    Announcement,
    DraftRequest,
    FollowUp,
    FollowUps,
    Proposal,
    RoundPlan,
    Verdict,
)

MOST_A_ROUND = 2
"""Announcements for each round that was sent; and as many are kept."""


@dataclass(frozen=True, slots=True)
class Coming:
    """The ``Progress`` of a session behind a verdict that is still to come."""

    length: int
    remaining: int
    fully_accepted: bool
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

    def tell(self, running: Proposal, announcement: Announcement) -> FollowUps | None:
        """Return what is to be told of what may come behind the verdict on ``running``; None: nothing.

        All have the gate of the first one; one whose plan has another is left out.
        """
        session = self._session
        place = session.round, session.length
        if session.finished or announcement.position != session.length or place == self._sent_at:
            return None
        coming = [entry for one in announcement.proposals if (entry := self._coming(running, one)) is not None]
        coming = [entry for entry in coming if entry[1].plan.solo_below == coming[0][1].plan.solo_below]
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

    def _coming(self, running: Proposal, announced: AnnouncedProposal) -> tuple[FollowUp, Planned] | None:
        session, (num_accepted, token_id, _) = self._session, announced
        if num_accepted > len(running) or not 0 <= token_id < session.opening_spec.vocab_size:
            return None
        token_ids = (*running.draft_token_ids[:num_accepted], token_id)
        expected = self._plan_ahead(len(token_ids), fully_accepted=num_accepted == len(running))
        if expected is None or not expected.plan.gamma:
            return None
        plan = expected.plan
        request = DraftRequest(session.round + 1, session.length, token_ids, plan.gamma, plan.stop_below, plan.prepare)
        proposal = self._drafter.announced(request)
        if proposal is None:
            return None
        follow_up = FollowUp(num_accepted, token_id, proposal.draft_token_ids, expected.least_confidence)
        return follow_up, Planned(plan, proposal)

    def _plan_ahead(self, num_tokens: int, *, fully_accepted: bool) -> ExpectedPlan | None:
        session = self._session
        return self._policy.plan_ahead(
            Coming(session.length + num_tokens, session.remaining - num_tokens, fully_accepted)
        )


class _Terms(NamedTuple):
    """How announced proposals are drafted: one that is shorter than ``complete_length`` came to an end of its own."""

    complete_length: int = 0
    stop_below: float = 0.0


class _Heard(NamedTuple):
    """An announcement, and the terms that it was made on."""

    announcement: Announcement
    terms: _Terms

    def proposal_behind(self, proposed: tuple[int, ...], request: DraftRequest) -> tuple[int, ...]:
        """Return what is proposed behind what the request commits; () where nothing was announced of that.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were ``proposed``.
        """
        if (self.announcement.position, self.terms.stop_below) != (request.position, request.stop_below):
            return ()
        for num_accepted, token_id, ids in self.announcement.proposals:
            if num_accepted > len(proposed):
                raise InvalidArgument("announced.branches.num_accepted", f"{num_accepted} of {len(proposed)}")
            if (*proposed[:num_accepted], token_id) == request.token_ids:
                return ids
        return ()

    def is_fulfilled(self, proposed: tuple[int, ...], request: DraftRequest) -> bool:
        """Return whether the first proposal is what the request asks for, from end to end."""
        ids = self.proposal_behind(proposed, request)
        is_whole = len(ids) == request.gamma or len(ids) < min(request.gamma, self.terms.complete_length)
        return bool(ids) and ids is self.announcement.proposals[0].draft_token_ids and is_whole

    def is_before(self, further: Announcement) -> bool:
        """Return whether the first proposal is what ``further`` stands behind."""
        num_accepted = next((one.num_accepted for one in self.announcement.proposals), -1)
        end = self.announcement.position + num_accepted + 1
        return (self.announcement.number + 1, end) == (further.number, further.position)


class Announced:
    """What was proposed last in one session, and what was announced and may still come about."""

    def __init__(self) -> None:
        self.proposed: tuple[int, ...] | None = ()
        """None: that is not known yet."""
        self._is_answered = True
        self._asked: DraftRequest | None = None
        self._proposed_before: tuple[int, ...] = ()
        self._gamma = 0
        self._terms = self._terms_before = _Terms()
        self._chain: list[_Heard] = []
        """Of the next round first; each further one stands behind the first proposal of the one before."""
        self._fulfilled: _Heard | None = None
        """Whose first proposal was asked for last. What comes of the round behind it belongs to the chain."""

    @property
    def was_expected(self) -> bool:
        """Whether what was asked for last is known to be what was announced first, as a whole."""
        return self._fulfilled is not None

    def ask(self, request: DraftRequest) -> Announcement | None:
        """Take it that ``request`` is sent, which what is announced from now on is made by.

        Returns:
            what was announced of the round behind it, if anything was.

        Raises:
            InvalidArgument: see ``answer``.
        """
        answer = self.answer(request)
        self._asked, self._proposed_before, self._terms_before = request, self.proposed or (), self._terms
        stop_below = self._terms.stop_below
        if request.gamma:
            self._gamma, stop_below = request.gamma, request.stop_below
        self._terms = _Terms(request.prepare or self._gamma, stop_below)
        self._is_answered = False
        # What was announced for it is what it will be answered.
        self.proposed = answer.draft_token_ids if answer is not None else None if request.gamma else ()
        chain, self._chain, self._fulfilled = self._chain, [], None
        if chain and answer is not None and chain[0].is_fulfilled(self._proposed_before, request):
            self._fulfilled, *self._chain = chain
        return self._chain[0].announcement if self._chain else None

    def answered(self, draft_token_ids: tuple[int, ...]) -> None:
        """Take it that this is what was answered."""
        if self.proposed is not None and self.proposed != draft_token_ids:
            self._chain, self._fulfilled = [], None
        self.proposed, self._is_answered = draft_token_ids, True

    def on_announcement(self, announcement: Announcement) -> bool:
        """Keep an announcement, if anything can come of it; return whether that may be asked for next.

        Raises:
            InvalidArgument: see ``answer``.
        """
        if not announcement.further:
            return self._begin_with(announcement)
        before = self._chain[-1] if self._chain else self._fulfilled
        if before is None or len(self._chain) == MOST_A_ROUND or not before.is_before(announcement):
            return False
        self._chain.append(_Heard(announcement, before.terms))
        return len(self._chain) == 1

    def answer(self, request: DraftRequest) -> Proposal | None:
        """Return what the drafter will answer to ``request``, if it has said so.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were proposed.
        """
        if not request.gamma or not self._chain or self.proposed is None:
            return None
        ids = self._chain[0].proposal_behind(self.proposed, request)
        ended = len(ids) < self._chain[0].terms.complete_length
        if not ids or (not ended and len(ids) < request.gamma):
            return None
        ids = ids[: request.gamma]
        return Proposal(ids, from_run_ahead=True, num_prepared=len(ids))

    def _begin_with(self, announcement: Announcement) -> bool:
        self._chain, self._fulfilled = [], None
        asked = self._asked
        if asked is None or announcement.position != asked.position or not asked.token_ids:
            self._chain = [_Heard(announcement, self._terms)]
            return True
        # It crossed the request.
        crossed = _Heard(announcement, self._terms_before)
        if crossed.is_fulfilled(self._proposed_before, asked):
            ids = announcement.proposals[0].draft_token_ids
            # The answer may have overtaken it, of a draft that was lost meanwhile and made anew.
            if not self._is_answered or ids == self.proposed:
                self._fulfilled, self.proposed = crossed, ids
        return False
