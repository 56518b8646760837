"""Whether new requests can be served now: cheap enough to be asked every second by every load balancer."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from orchestrator.api.request_queue import RequestQueue
from specgate.errors import ServiceUnavailable, SpecgateError

HEARD_S = 5.0
FRESH_S = 1.0
PROBE_TIMEOUT_S = 2.0

Probe = Callable[[], Awaitable[None]]
"""Raises SpecgateError where no verifier is there. One that is busy is there."""


class Readiness:
    """Asks ``probe`` at most once in FRESH_S seconds however many ask, and not at all while requests get tokens.

    Args:
        probe: by default one verifier is asked over gRPC what it serves.
    """

    def __init__(self, request_queue: RequestQueue, probe: Probe | None = None) -> None:
        self._request_queue = request_queue
        self._probe = probe or self._ask_verifiers
        self._checked_at: float | None = None
        self._failure: SpecgateError | None = None
        self._asking = asyncio.Lock()

    async def check(self) -> None:
        """Raise ServiceUnavailable while the request queue is draining, or where no verifier is there."""
        if self._request_queue.draining:
            raise ServiceUnavailable("the gateway is draining")
        if _age_s(self._request_queue.heard_at) < HEARD_S:
            return
        async with self._asking:
            if _age_s(self._checked_at) >= FRESH_S:
                self._failure = await self._ask()
                self._checked_at = time.monotonic()
        if self._failure is not None:
            raise ServiceUnavailable(f"not ready: {self._failure}")

    async def _ask(self) -> SpecgateError | None:
        try:
            await self._probe()
        except SpecgateError as error:
            return error
        return None

    async def _ask_verifiers(self) -> None:
        await self._request_queue.orchestrator.check_verifiers(PROBE_TIMEOUT_S)


def _age_s(moment: float | None) -> float:
    return math.inf if moment is None else time.monotonic() - moment
