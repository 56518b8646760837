"""How long a test waits for what must come. It bounds a hang alone: no test fails because the machine is busy."""

import asyncio
import os
import time
from collections.abc import Callable

PATIENCE_S = float(os.environ.get("SPECGATE_TEST_PATIENCE_S", "120"))
"""Less than half of what pytest gives a test: the wait that hangs is named in the failure."""


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_S)


async def eventually(condition: Callable[[], object]) -> None:
    """Return once ``condition`` holds."""
    async with patience():
        while not condition():  # noqa: ASYNC110 - plain counters, with no event to await
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return once ``condition`` holds, where there is no event loop. Raises TimeoutError."""
    give_up_at_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at_s:
            raise TimeoutError(condition)
        time.sleep(0.02)
