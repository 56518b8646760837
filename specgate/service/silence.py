"""How long a client may be silent while its service waits for it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from specgate.errors import SessionIdle

DEFAULT_FIRST_MESSAGE_S = 10.0
DEFAULT_SESSION_IDLE_S = 60.0
REPORT_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Seconds that a stream may take to its first message, and seconds of silence that a session survives."""

    first_message_s: float = DEFAULT_FIRST_MESSAGE_S
    session_idle_s: float = DEFAULT_SESSION_IDLE_S

    @property
    def session_idle_ms(self) -> int:
        """As it is sent to a client."""
        return round(self.session_idle_s * 1000)


class Silence:
    """Counts the time in which a client is silent. Made by ``ended_by_silence``."""

    def __init__(self, bound: asyncio.Timeout, limits: SilenceLimits) -> None:
        self._bound = bound
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._num_working = 0
        self.problem = f"no message came within {limits.first_message_s:g} s of the stream's start"

    def restart(self) -> None:
        """Restart the count after a message, unless the service works."""
        self.problem = f"nothing came for {self._limits.session_idle_s:g} s, neither a round nor a keep_alive"
        if not self._num_working and not self._bound.expired():
            self._bound.reschedule(self._loop.time() + self._limits.session_idle_s)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within the block the client waits for the service, and no time is counted."""
        self._num_working += 1
        try:
            if not self._bound.expired():
                self._bound.reschedule(None)
            yield
        finally:
            self._num_working -= 1
            self.restart()


class _Report:
    """Logs ended sessions: the first one at once, then all that end within ``REPORT_S`` in one line."""

    def __init__(self) -> None:
        self._num_ended, self._last = 0, ("", "")
        self._next_s = 0.0

    def ended(self, peer: str, problem: str) -> None:
        self._num_ended, self._last = self._num_ended + 1, (peer, problem)
        if time.monotonic() >= self._next_s:
            self._tell()

    def _tell(self) -> None:
        if self._num_ended:
            more = f" (and {self._num_ended - 1} more sessions)" if self._num_ended > 1 else ""
            _log.warning("ended a session of %s: %s%s", *self._last, more)
            self._num_ended, self._next_s = 0, time.monotonic() + REPORT_S
            asyncio.get_running_loop().call_later(REPORT_S, self._tell)


_report = _Report()


@asynccontextmanager
async def ended_by_silence(limits: SilenceLimits, peer: str) -> AsyncIterator[Silence]:
    """Cancel the block when its client is silent for too long.

    Args:
        peer: the client's name in the log.

    Raises:
        SessionIdle: instead of that cancellation.
    """
    silence: Silence | None = None
    try:
        async with asyncio.timeout(limits.first_message_s) as bound:
            silence = Silence(bound, limits)
            yield silence
    except TimeoutError:
        if silence is None or not bound.expired():
            raise
        _report.ended(peer, silence.problem)
        raise SessionIdle(silence.problem) from None
