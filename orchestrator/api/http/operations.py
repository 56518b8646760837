"""What operators' programs ask: whether it is alive and ready, what it counts, and where the other replicas are."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

import specgate
from orchestrator.api.metrics.gateway import GatewayMetrics
from orchestrator.api.request_queue import RequestQueue
from specgate.errors import ServiceUnavailable, SpecgateError

HEARD_S = 5.0
"""A verifier that answered a request so recently is there."""
FRESH_S = 1.0
"""How long one probe answers everybody: load balancers ask about every second."""
PROBE_TIMEOUT_S = 2.0
"""Less than load balancers wait for an answer."""

Probe = Callable[[], Awaitable[None]]
"""Raises SpecgateError if no verifier answers. A busy one answers."""
Targets = Callable[[], Awaitable[list[dict[str, object]]]]
"""Returns the address of every replica's ``/metrics``, in the form of Prometheus's HTTP service discovery."""


class Readiness:
    """Whether new requests can be served now.

    It asks ``probe`` at most once in FRESH_S seconds however many ask, and not at all while requests get tokens.

    Args:
        probe: by default it asks one verifier over gRPC what it serves.
    """

    def __init__(self, request_queue: RequestQueue, probe: Probe | None = None) -> None:
        self._request_queue = request_queue
        self._probe = probe or self._ask_verifiers
        self._checked_at: float | None = None
        self._failure: SpecgateError | None = None
        self._asking = asyncio.Lock()

    async def check(self) -> None:
        """Raise ServiceUnavailable if the request queue is draining or no verifier answers."""
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


def add_health(app: FastAPI, readiness: Readiness) -> None:
    """Put the routes of load balancers into ``app``."""

    @app.get("/health")
    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        await readiness.check()
        return JSONResponse({"status": "ready"})

    @app.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": specgate.__version__})


def add_metrics(app: FastAPI, metrics: GatewayMetrics, targets: Targets) -> None:
    """Put the routes of Prometheus into ``app``. ``/metrics`` answers in OpenMetrics if the scraper asks for it."""

    @app.get("/metrics")
    async def counts(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type})

    @app.get("/metrics/targets")
    async def replicas() -> Response:
        return JSONResponse(await targets())


async def no_targets() -> list[dict[str, object]]:
    """For one gateway that knows no services."""
    return []
