"""``grpc.health.v1`` that is never SERVING over a dead engine."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

ENGINE_AGE_KEY = "specgate-engine-age-ms"
"""Trailing metadata of Check: milliseconds since the engine's last heartbeat."""
MAX_AGE_S = 1e6
"""What an engine that never beat is said to be old, because infinity is no number of milliseconds."""

_log = logging.getLogger(__name__)


class EngineHealth(health.aio.HealthServicer):
    """SERVING, for ``""`` and the service's name, while the server takes calls and the engine's heart beats.

    ``accepting`` says the first, ``engine_age_s`` (None: there is no engine) the second, in seconds since its
    last heartbeat; above ``max_age_s`` it counts as dead, and as alive again once it is below.
    """

    def __init__(self, service: str, accepting: Callable[[], bool], max_age_s: float) -> None:
        super().__init__()
        self.engine_age_s: Callable[[], float] | None = None
        self._names = ("", service)
        self._accepting = accepting
        self._max_age_s = max_age_s
        self._serving: bool | None = None

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the status of this moment, and with the engine's age in the trailing metadata."""
        await self.refresh()
        if self.engine_age_s is not None:
            age_ms = int(min(self.engine_age_s(), MAX_AGE_S) * 1000)
            context.set_trailing_metadata(((ENGINE_AGE_KEY, str(age_ms)),))
        response: health_pb2.HealthCheckResponse = await super().Check(request, context)
        return response

    async def refresh(self) -> None:
        """Publish the status of this moment to Check and Watch."""
        alive = self.engine_age_s is None or self.engine_age_s() <= self._max_age_s
        serving = alive and self._accepting()
        if serving is self._serving:
            return
        if not alive:
            _log.error("the engine has had no heartbeat for over %g s", self._max_age_s)
        self._serving = serving
        known = health_pb2.HealthCheckResponse
        for name in self._names:
            await self.set(name, known.SERVING if serving else known.NOT_SERVING)

    async def watch_heartbeat(self) -> None:
        """Refresh for ever, often enough that Watch reports a death within a quarter of ``max_age_s``."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._max_age_s / 4)
