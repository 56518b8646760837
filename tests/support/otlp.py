"""A collector of OpenTelemetry's, for tests: keeps the spans that arrive over gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(slots=True)
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """``spans`` are (the service's name, the span)."""

    endpoint: str = ""
    spans: list[tuple[str, Any]] = field(default_factory=list)

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        """Return the spans of that name."""
        return [span for _, span in self.spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on a free loopback port."""
    server, collector = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
