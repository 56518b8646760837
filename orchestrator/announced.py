"""What a drafter announced, and whether it is the answer to what it is asked."""

from specgate.errors import InvalidArgument
from specgate.types import Announcement, DraftRequest, Proposal


class Announced:
    """The latest announcement of one session.

    Announced proposals have the ``stop_below`` of the last request for tokens, and as many tokens as the last request
    said, or, where it did not say, at least as many as that one asked for.
    """

    def __init__(self) -> None:
        self._latest: Announcement | None = None
        self._length = 0
        self._stop_below = 0.0

    def hear(self, announcement: Announcement) -> None:
        """Keep an announcement, instead of the one before."""
        self._latest = announcement

    def ask(self, request: DraftRequest) -> None:
        """Forget what was announced for this request, and remember what the next announcement will be made by."""
        self._latest = None
        if request.gamma:
            self._length, self._stop_below = request.gamma, request.stop_below
        self._length = request.prepare or self._length

    def answer(self, request: DraftRequest, last_draft_token_ids: tuple[int, ...]) -> Proposal | None:
        """Return what the drafter will answer to ``request``, if it has said so.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were proposed.
        """
        announcement = self._latest
        if not request.gamma or announcement is None:
            return None
        if (announcement.position, self._stop_below) != (request.position, request.stop_below):
            return None
        for num_accepted, token_id, ids in announcement.proposals:
            if num_accepted > len(last_draft_token_ids):
                raise InvalidArgument("announced.num_accepted", f"{num_accepted} of {len(last_draft_token_ids)}")
            if (*last_draft_token_ids[:num_accepted], token_id) == request.token_ids:
                # A shorter one than was asked for had come to an end of its own.
                ended = len(ids) < self._length
                return Proposal(ids[: request.gamma], (), True) if ended or request.gamma <= len(ids) else None
        return None
