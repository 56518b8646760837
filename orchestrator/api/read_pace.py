"""How slowly a client may read before it is disconnected. What it reads in a while counts, not total silence."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from specgate.errors import ServiceUnavailable

_log = logging.getLogger(__name__)


class ReaderTooSlow(ServiceUnavailable):
    """The client reads so slowly that others would wait for it."""


class ReadPace:
    """Times the writes of one answer.

    A reader falls behind by the time that writes wait for it. It catches up by one second with every
    ``min_tokens_per_s`` tokens that it reads. At ``window_s`` seconds behind it is disconnected.

    So a reader that reads nothing is disconnected after ``window_s`` seconds, one at half of the pace after twice that,
    and one that keeps the pace never, however fast the models are.

    Args:
        clock: returns seconds.
    """

    def __init__(
        self, min_tokens_per_s: float, window_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._min_tokens_per_s = min_tokens_per_s
        self._window_s = window_s
        self._clock = clock
        self._behind_s = 0.0

    async def write(self, writing: Awaitable[None], num_tokens: int = 0) -> None:
        """Wait for a write of ``num_tokens`` tokens.

        Raises:
            ReaderTooSlow: the reader has fallen too far behind.
        """
        start_s = self._clock()
        try:
            async with asyncio.timeout(self._window_s - self._behind_s):
                await writing
        except TimeoutError:
            raise self._too_slow() from None
        self._behind_s = max(0.0, self._behind_s + self._clock() - start_s - num_tokens / self._min_tokens_per_s)
        if self._behind_s > self._window_s:
            raise self._too_slow()

    def _too_slow(self) -> ReaderTooSlow:
        pace, window = self._min_tokens_per_s, self._window_s
        error = ReaderTooSlow(f"the reader fell {window:g} s behind a pace of {pace:g} tokens/s")
        _log.warning("a request was cut: %s", error)
        return error
