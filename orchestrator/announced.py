"""What a drafter announced, and whether it is the answer to what it is asked.

A drafter may be further ahead than it was told: behind the first proposal of an announcement it makes another one,
which holds once that proposal was asked for as a whole.
"""

from typing import NamedTuple

from specgate.errors import InvalidArgument
from specgate.types import Announcement, DraftRequest, Proposal

MOST_A_ROUND = 2
"""Announcements for each round that was sent."""


class _Asked(NamedTuple):
    """A round that was sent. ``before``: what was proposed last then; ``same_terms``: as in the round before it."""

    request: DraftRequest
    before: tuple[int, ...]
    same_terms: bool

    @property
    def position(self) -> int:
        return self.request.position + len(self.request.token_ids)


class Announced:
    """What was proposed last in one session, and what was announced and may still come about.

    Announced proposals have the ``stop_below`` of the last request for tokens. One that is shorter than they may be has
    come to an end of its own.
    """

    def __init__(self) -> None:
        self.proposed: tuple[int, ...] | None = ()
        """None: the answer is not known yet."""
        self._asked: _Asked | None = None
        self._chain: list[Announcement] = []
        """Of the next round first; each further one stands behind the first proposal of the one before."""
        self._come_true: Announcement | None = None
        """Whose first proposal was asked for last, as a whole."""
        self._gamma = 0
        self._complete_length = 0
        self._stop_below = 0.0

    def ask(self, request: DraftRequest) -> Announcement | None:
        """Take it that ``request`` is sent, which what is announced from now on is made by.

        Returns:
            what was announced of the round behind it, if anything was.
        """
        answer, terms = self.answer(request), (self._complete_length, self._stop_below)
        if request.gamma:
            self._gamma, self._stop_below = request.gamma, request.stop_below
        self._complete_length = request.prepare or self._gamma
        same_terms = terms == (self._complete_length, self._stop_below)
        self._asked = _Asked(request, self.proposed or (), same_terms)
        # What was announced for it is what it will be answered.
        self.proposed = answer.draft_token_ids if answer is not None else None if request.gamma else ()
        chain, self._chain, self._come_true = self._chain, [], None
        if chain and self._comes_true(chain[0]):
            self._come_true, *self._chain = chain
        return self._chain[0] if self._chain else None

    def answered(self, draft_token_ids: tuple[int, ...]) -> None:
        """The drafter has answered what was asked."""
        if self.proposed is not None and self.proposed != draft_token_ids:
            self._chain, self._come_true = [], None
        self.proposed = draft_token_ids

    def hear(self, announcement: Announcement) -> bool:
        """Keep an announcement; return whether it is of what may be asked for next."""
        if not announcement.further:
            return self._begin_with(announcement)
        before = self._chain[-1] if self._chain else self._come_true
        is_full = len(self._chain) == MOST_A_ROUND
        if before is None or is_full or announcement.position != before.position + _first_length(before):
            return False
        self._chain.append(announcement)
        return len(self._chain) == 1

    def answer(self, request: DraftRequest) -> Proposal | None:
        """Return what the drafter will answer to ``request``, if it has said so.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were proposed.
        """
        if not request.gamma or not self._chain or self.proposed is None:
            return None
        if (self._chain[0].position, self._stop_below) != (request.position, request.stop_below):
            return None
        ids = _told(self._chain[0], self.proposed, request.token_ids)
        ended = len(ids) < self._complete_length
        if not ids or (not ended and len(ids) < request.gamma):
            return None
        ids = ids[: request.gamma]
        return Proposal(ids, from_run_ahead=True, num_prepared=len(ids))

    def _begin_with(self, announcement: Announcement) -> bool:
        asked = self._asked
        if asked is not None and announcement.position == asked.request.position < asked.position:
            # It crossed the request.
            if self._comes_true(announcement):
                self._chain, self._come_true = [], announcement
                self.proposed = announcement.proposals[0].draft_token_ids
            return False
        self._chain, self._come_true = [announcement], None
        return True

    def _comes_true(self, announcement: Announcement) -> bool:
        """Return whether its first proposal is what was asked for last, from end to end, and on the same terms."""
        if self._asked is None or not announcement.proposals:
            return False
        request, before, same_terms = self._asked
        num_accepted, token_id, ids = announcement.proposals[0]
        is_named = (*before[:num_accepted], token_id) == request.token_ids
        is_whole = len(ids) == request.gamma or len(ids) < min(request.gamma, self._complete_length)
        return announcement.position == request.position and same_terms and is_named and is_whole


def _told(announcement: Announcement, proposed: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return what is proposed behind ``token_ids``; () where nothing was announced of them."""
    for num_accepted, token_id, ids in announcement.proposals:
        if num_accepted > len(proposed):
            raise InvalidArgument("announced.num_accepted", f"{num_accepted} of {len(proposed)}")
        if (*proposed[:num_accepted], token_id) == token_ids:
            return ids
    return ()


def _first_length(announcement: Announcement) -> int:
    """Return how many tokens are committed where the first proposal comes about."""
    return announcement.proposals[0].num_accepted + 1 if announcement.proposals else 0
