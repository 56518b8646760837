"""A gateway's observers around one request: metrics of requests and rounds, and a span of each round."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from orchestrator.api.metrics.requests import RequestMetrics
from orchestrator.api.metrics.rounds import RoundMetrics
from orchestrator.api.traces import round_spans
from specgate import tracing
from specgate_lab.variants import RequestObservers

EXPORT_MS = 200
"""How often spans are sent. Every 5 s, the default, those of one request would be sent in the time of another row."""


class GatewayObservers(grpc.GenericRpcHandler):
    """What a gateway that traces every request observes, and the collector that it sends spans to.

    ``exports`` are the serialised requests that the collector got.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.exports: list[bytes] = []
        self.endpoint = ""
        self._requests = RequestMetrics(self.registry, "bench")
        self._rounds = RoundMetrics("bench")
        self.registry.register(self._rounds)

    @asynccontextmanager
    async def observe(self) -> AsyncIterator[RequestObservers]:
        """See ``Observe``. Spans are sent before the block is left: none in the time of another row.

        Raises:
            InvalidArgument: the extra ``otel`` is not installed.
        """
        tracing.configure("specgate-bench", self.endpoint, sample=1.0)
        try:
            with tracing.span("request", None, {}):
                on_record = [self._rounds.on_record, *round_spans()]
                yield RequestObservers(on_record, self._rounds.on_loss, self._requests.begin().on_delta)
        finally:
            await asyncio.to_thread(tracing.shut_down)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Answer whatever is called as a collector does."""
        return grpc.unary_unary_rpc_method_handler(self._take)

    async def _take(self, request: bytes, context: Any) -> bytes:
        self.exports.append(request)
        return b""


@asynccontextmanager
async def observing() -> AsyncIterator[GatewayObservers]:
    """Start the collector, and have spans sent often unless the environment says otherwise.

    Raises as ``GatewayObservers.observe`` does, before anything is measured.
    """
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", str(EXPORT_MS))
    gateway, collector = GatewayObservers(), grpc.aio.server()
    collector.add_generic_rpc_handlers((gateway,))
    gateway.endpoint = f"http://127.0.0.1:{collector.add_insecure_port('127.0.0.1:0')}"
    await collector.start()
    try:
        async with gateway.observe():
            pass
        yield gateway
    finally:
        await collector.stop(None)
