"""What a drafter announced, and whether it is the answer to what it is asked."""

from specgate.errors import InvalidArgument
from specgate.types import Announcement, DraftRequest, Proposal


class Announced:
    """The latest announcement of one session.

    Announced proposals have the ``stop_below`` of the last request for tokens, and at least its ``gamma``.
    """

    def __init__(self) -> None:
        self._latest: Announcement | None = None
        self._gamma = 0
        self._stop_below = 0.0

    def hear(self, announcement: Announcement) -> None:
        """Keep an announcement, instead of the one before."""
        self._latest = announcement

    def take(self, request: DraftRequest, last_draft_token_ids: tuple[int, ...]) -> Proposal | None:
        """Return what the drafter will answer to ``request``, if it has said so.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were proposed.
        """
        announcement, self._latest = self._latest, None
        gamma, stop_below = self._gamma, self._stop_below
        if not request.gamma:
            return None
        self._gamma, self._stop_below = request.gamma, request.stop_below
        if announcement is None or announcement.position != request.position or stop_below != request.stop_below:
            return None
        for num_accepted, token_id, ids in announcement.proposals:
            if num_accepted > len(last_draft_token_ids):
                raise InvalidArgument("announced.num_accepted", f"{num_accepted} of {len(last_draft_token_ids)}")
            if (*last_draft_token_ids[:num_accepted], token_id) == request.token_ids:
                # A shorter one than was asked for had come to an end of its own.
                ended = len(ids) < gamma
                return Proposal(ids[: request.gamma], (), True) if ended or request.gamma <= len(ids) else None
        return None
