"""Run long work in small steps, so that no round waits for it."""

import asyncio
from collections.abc import Iterator

START_S = 0.002
"""Delay before the first step: the current round has sent its messages by then."""


def between_events(steps: Iterator[None]) -> None:
    """Run the steps one by one on the running event loop, with other events in between."""
    loop = asyncio.get_running_loop()

    def step() -> None:
        for _ in steps:
            loop.call_soon(step)
            return

    loop.call_later(START_S, step)
