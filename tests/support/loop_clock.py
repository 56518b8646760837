"""How long one event loop keeps its clients waiting: CPU time of its own thread at a stretch, and wall time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

BEAT_S = 0.001


class LoopClock:
    """The worst that a loop did since it was last read."""

    def __init__(self) -> None:
        self._worst_cpu_s = self._worst_wait_s = 0.0

    async def read(self) -> tuple[float, float]:
        """Return the longest stretch of CPU time and the longest wait, in milliseconds, and begin anew."""
        # What runs now may be the end of a stretch, which the next beat counts.
        await asyncio.sleep(10 * BEAT_S)
        worst = self._worst_cpu_s * 1e3, self._worst_wait_s * 1e3
        self._worst_cpu_s = self._worst_wait_s = 0.0
        return worst

    async def beat(self) -> None:
        """Run for as long as the loop is to be watched. A stretch ends where this is scheduled again."""
        while True:
            cpu_s, due_s = time.thread_time(), time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._worst_cpu_s = max(self._worst_cpu_s, time.thread_time() - cpu_s)
            self._worst_wait_s = max(self._worst_wait_s, time.monotonic() - due_s)


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopClock]:
    """Watch the running loop while the context lasts."""
    clock = LoopClock()
    beating = asyncio.create_task(clock.beat())
    try:
        yield clock
    finally:
        beating.cancel()
        await asyncio.wait((beating,))
