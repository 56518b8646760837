"""How long to wait for an answer before silence counts as death."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """Waits ``first_s`` for a first answer, which has a prefill before it, then in proportion to what was seen.

    Later answers may take ``factor`` times the slowest one so far, and ``floor_s`` in any case. All in seconds.
    """

    def __init__(
        self, first_s: float, floor_s: float, factor: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limit_s = first_s
        self._floor_s = floor_s
        self._factor = factor
        self._clock = clock
        self._slowest_s: float | None = None

    async def wait(self, answer: Awaitable[T]) -> T:
        """Return the answer. Raises TimeoutError where it takes longer than ``limit_s``."""
        start_s = self._clock()
        async with asyncio.timeout(self.limit_s):
            result = await answer
        self._learn(self._clock() - start_s)
        return result

    def _learn(self, seconds: float) -> None:
        # The first one counts for nothing: a long prompt would make a hang look normal.
        self._slowest_s = 0.0 if self._slowest_s is None else max(self._slowest_s, seconds)
        self.limit_s = max(self._floor_s, self._factor * self._slowest_s)
