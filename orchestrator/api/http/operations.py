"""What operators' programs ask: is it alive, is it ready, what does it count, and where are the other replicas."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

import specgate
from orchestrator.api.metrics.gateway import GatewayMetrics
from orchestrator.api.readiness import Readiness

Targets = Callable[[], Awaitable[list[dict[str, object]]]]
"""Returns where every replica's ``/metrics`` is, as Prometheus's HTTP service discovery has it."""


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
    """Put the routes of Prometheus into ``app``. ``/metrics`` takes OpenMetrics too, where the scraper asks for it."""

    @app.get("/metrics")
    async def counts(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type})

    @app.get("/metrics/targets")
    async def replicas() -> Response:
        return JSONResponse(await targets())


async def no_targets() -> list[dict[str, object]]:
    """Where there is one gateway and nobody who knows of services."""
    return []
