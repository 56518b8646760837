"""What a drafter announced, and whether it is the answer to what it is asked.

A drafter may be further ahead than it was told: behind the first proposal of an announcement it makes another one,
which holds once that proposal was asked for as a whole.
"""

from typing import NamedTuple

from specgate.errors import InvalidArgument
from specgate.types import Announcement, DraftRequest, Proposal

MOST_A_ROUND = 2
"""Announcements for each round that was sent; and as many are kept."""


class _Terms(NamedTuple):
    """How announced proposals are drafted: one that is shorter than ``complete_length`` came to an end of its own."""

    complete_length: int = 0
    stop_below: float = 0.0


class _Heard(NamedTuple):
    """An announcement, and the terms that it was made on."""

    announcement: Announcement
    terms: _Terms

    def told(self, proposed: tuple[int, ...], request: DraftRequest) -> tuple[int, ...]:
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
        ids = self.told(proposed, request)
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
    def was_foreseen(self) -> bool:
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
        ids = self._chain[0].told(self.proposed, request)
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
