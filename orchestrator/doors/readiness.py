"""Whether new requests can be served now: cheap enough to be asked every second by every load balancer."""

import asyncio
import math
import time

from orchestrator.doors.desk import Desk
from specgate.errors import ServiceUnavailable, SpecgateError

HEARD_S = 5.0
FRESH_S = 1.0
PROBE_TIMEOUT_S = 2.0


class Readiness:
    """Asks one verifier what it serves, at most once in FRESH_S seconds however many ask.

    Nobody is asked while requests get tokens: where all verifiers are busy, the question would wait behind them.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._checked_at: float | None = None
        self._failure: SpecgateError | None = None
        self._asking = asyncio.Lock()

    async def check(self) -> None:
        """Raise ServiceUnavailable while the desk is draining, or where no verifier answers."""
        if self._desk.draining:
            raise ServiceUnavailable("the gateway is draining")
        if _age_s(self._desk.heard_at) < HEARD_S:
            return
        async with self._asking:
            if _age_s(self._checked_at) >= FRESH_S:
                self._failure = await self._ask()
                self._checked_at = time.monotonic()
        if self._failure is not None:
            raise ServiceUnavailable(f"no verifier answers: {self._failure}")

    async def _ask(self) -> SpecgateError | None:
        try:
            await self._desk.orchestrator.check_verifiers(PROBE_TIMEOUT_S)
        except SpecgateError as error:
            return error
        return None


def _age_s(moment: float | None) -> float:
    return math.inf if moment is None else time.monotonic() - moment
