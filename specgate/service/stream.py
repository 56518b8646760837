"""The first steps of a session's stream, the same on both services."""

import time
from collections.abc import AsyncIterator
from typing import Any

from specgate.errors import InvalidArgument


async def open_spec(requests: AsyncIterator[Any]) -> Any:
    """Return the specification in the first message.

    Raises:
        InvalidArgument: the first message is not ``open``, or there is none.
    """
    async for message in requests:
        if message.WhichOneof("message") != "open":
            break
        return message.open
    raise InvalidArgument("open", "must be the first message of the stream")


def is_keep_alive(message: Any) -> bool:
    """Return whether a later message says nothing but that its sender is there."""
    return bool(message.WhichOneof("message") == "keep_alive")


def round_of(message: Any) -> Any:
    """Return the round in a later message. Raises InvalidArgument where it is anything else."""
    if message.WhichOneof("message") != "round":
        raise InvalidArgument("round", "is missing; a session is opened once, and rounds follow")
    return message.round


class Stopwatch:
    """Microseconds from a round's arrival to its answers: all that a peer has to wait for but the network."""

    def __init__(self) -> None:
        self._start_s = 0.0

    def start(self) -> None:
        """A round has arrived."""
        self._start_s = time.perf_counter()

    def lap_us(self) -> int:
        """An answer leaves: return the time since the arrival, or since the answer before if that came later."""
        start_s, self._start_s = self._start_s, time.perf_counter()
        return int((self._start_s - start_s) * 1e6)
