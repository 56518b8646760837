"""How much a drafter guesses ahead: less the more sessions there are, and nothing when there are too many."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RECENT_S = 0.5
"""A session that was told nothing for so long is with a slow reader: its share goes to the others."""
MIN_SHARE = 2
"""Less than this for each of several sessions hits too rarely for what it takes from the real drafts of the others."""


class RunAheadBudget:
    """Shares the rows of one forward among the sessions that were asked or told something of late.

    Args:
        num_rows: guesses that are drafted side by side, of all sessions together; 0 is no run-ahead.
        clock: seconds.
    """

    def __init__(self, num_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_rows = num_rows
        self._clock = clock
        self._seen_s: dict[int, float] = {}

    def share(self, session: object) -> int:
        """Return how many rows ``session``, which was just asked or told something, may use; 0 where too many are."""
        now_s = self._clock()
        self._seen_s[id(session)] = now_s
        self._seen_s = {key: at_s for key, at_s in self._seen_s.items() if now_s - at_s <= RECENT_S}
        share = self._num_rows // len(self._seen_s)
        return share if share >= MIN_SHARE or len(self._seen_s) == 1 else 0

    @contextmanager
    def sharing(self, session: object) -> Iterator[None]:
        """Count ``session`` no more when it has ended: requests that follow each other are not many sessions."""
        try:
            yield
        finally:
            self._seen_s.pop(id(session), None)
