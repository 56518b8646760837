"""What a drafter announced, and whether it is the answer to what it is asked."""

from specgate.errors import InvalidArgument
from specgate.types import Announcement, DraftRequest, Proposal


class Announced:
    """The latest announcement of one session.

    Announced proposals have the ``stop_below`` of the last request for tokens. One that is shorter than they may be has
    come to an end of its own.
    """

    def __init__(self) -> None:
        self._latest: Announcement | None = None
        self._gamma = 0
        self._complete_length = 0
        self._stop_below = 0.0

    def ask(self, request: DraftRequest) -> None:
        """Forget what was announced for this request, and remember what the next announcement will be made by."""
        self._latest = None
        if request.gamma:
            self._gamma, self._stop_below = request.gamma, request.stop_below
        self._complete_length = request.prepare or self._gamma

    def hear(self, announcement: Announcement) -> None:
        """Keep an announcement, instead of the one before."""
        self._latest = announcement

    def answer(self, request: DraftRequest, last_draft_token_ids: tuple[int, ...]) -> Proposal | None:
        """Return what the drafter will answer to ``request``, if it has said so.

        Raises:
            InvalidArgument: the announcement accepts more tokens than were proposed.
        """
        if not request.gamma:
            return None
        ids = self._told(request, last_draft_token_ids)
        if not ids:
            return None
        ended = len(ids) < self._complete_length
        if not ended and len(ids) < request.gamma:
            return None
        ids = ids[: request.gamma]
        return Proposal(ids, from_run_ahead=True, num_prepared=len(ids))

    def _told(self, request: DraftRequest, last_draft_token_ids: tuple[int, ...]) -> tuple[int, ...]:
        latest = self._latest
        if latest is None or (latest.position, self._stop_below) != (request.position, request.stop_below):
            return ()
        for num_accepted, token_id, ids in latest.proposals:
            if num_accepted > len(last_draft_token_ids):
                raise InvalidArgument("announced.num_accepted", f"{num_accepted} of {len(last_draft_token_ids)}")
            if (*last_draft_token_ids[:num_accepted], token_id) == request.token_ids:
                return ids
        return ()
