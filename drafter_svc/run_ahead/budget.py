"""How much each session guesses ahead: the more sessions, the less; with too many, nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RECENT_S = 0.5
"""A session without a round for so long has a slow reader: its share goes to the others."""
MIN_SHARE = 2
"""With a smaller share, guesses hit too rarely for the time that they take from the drafts of other sessions."""


class RunAheadBudget:
    """Shares the rows of one forward among the sessions that had a round recently.

    Args:
        num_rows: guesses that are drafted side by side, of all sessions together; 0 is no run-ahead.
        clock: seconds.
    """

    def __init__(self, num_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_rows = num_rows
        self._clock = clock
        self._seen_s: dict[int, float] = {}

    def share(self, session: object) -> int:
        """Return how many rows ``session`` may use in its round that begins now; 0 if too many sessions are active."""
        now_s = self._clock()
        self._seen_s[id(session)] = now_s
        self._seen_s = {key: at_s for key, at_s in self._seen_s.items() if now_s - at_s <= RECENT_S}
        share = self._num_rows // len(self._seen_s)
        return share if share >= MIN_SHARE or len(self._seen_s) == 1 else 0

    @contextmanager
    def sharing(self, session: object) -> Iterator[None]:
        """Stop counting ``session`` when the block is left: requests one after the other are not many sessions."""
        try:
            yield
        finally:
            self._seen_s.pop(id(session), None)
