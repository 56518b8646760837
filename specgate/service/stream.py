"""The messages of a session's stream, the same on both services."""

import time
from collections.abc import AsyncIterator
from typing import Any

from specgate.errors import InvalidArgument


async def open_spec(requests: AsyncIterator[Any]) -> Any:
    """Return the specification in the first message. Raises InvalidArgument if there is none."""
    async for message in requests:
        if message.WhichOneof("message") != "open":
            break
        return message.open
    raise InvalidArgument("open", "must be the first message of the stream")


def is_keep_alive(message: Any) -> bool:
    """Return whether a later message says only that its sender is there."""
    return bool(message.WhichOneof("message") == "keep_alive")


def round_of(message: Any) -> Any:
    """Return the round in a message. Raises InvalidArgument if it holds anything else."""
    if message.WhichOneof("message") != "round":
        raise InvalidArgument("round", "is missing; a session is opened once, and rounds follow")
    return message.round


class Stopwatch:
    """Microseconds from a round's arrival to its answers: what a peer waits for, without the network."""

    def __init__(self) -> None:
        self._start_s = 0.0

    def start(self) -> None:
        """Start when a round arrives."""
        self._start_s = time.perf_counter()

    def lap_us(self) -> int:
        """Return the time since the round's arrival, or since its last answer. Called when an answer is sent."""
        start_s, self._start_s = self._start_s, time.perf_counter()
        return int((self._start_s - start_s) * 1e6)
