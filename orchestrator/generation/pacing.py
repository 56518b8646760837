"""Work that takes longer than a round may wait for it, in steps between events."""

import asyncio
from collections.abc import Iterator

START_S = 0.002
"""What the round sends out that is planned now is on its way by then."""


def between_events(steps: Iterator[None]) -> None:
    """Take the steps one by one, with what happens at the running event loop between each two of them."""
    loop = asyncio.get_running_loop()

    def step() -> None:
        for _ in steps:
            loop.call_soon(step)
            return

    loop.call_later(START_S, step)
