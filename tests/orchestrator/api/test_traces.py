"""Traces: one request is one trace from the door to both services; what is not sampled leaves nothing."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from specgate import tracing
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, open_site
from tests.orchestrator.api.queues import dying_after
from tests.support.fake_services import unused_endpoint

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 12, "gamma": 2, "gate": "none", "ignore_eos": True}
SESSIONS = ("specgate.v1.DrafterService/Draft", "specgate.v1.VerifierService/Verify")
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "the-request"}


@dataclass(slots=True)
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector of OpenTelemetry's: ``spans`` are (the service's name, the span)."""

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


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """This process is gateway, drafter, verifier and collector at once."""
    server, collector = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    tracing.configure("specgate-test", collector.endpoint, sample=0.0)
    yield collector
    await asyncio.to_thread(tracing.shut_down)
    await server.stop(None)


async def asked(collector: Collector, **headers: str) -> Any:
    async with open_site() as site:
        answer = await site.client.post(COMPLETIONS, json=BODY, headers=headers)
        await site.room.freed()
    await asyncio.to_thread(tracing.shut_down)
    return answer.json()


async def test_one_request_is_one_trace_through_all_three(collector: Collector) -> None:
    answer = await asked(collector, **SAMPLED)
    assert {span.trace_id.hex() for _, span in collector.spans} == {TRACE}
    (request,) = collector.named("POST /v1/completions")
    assert request.parent_span_id.hex() == PARENT
    sessions = [one for name in SESSIONS for one in collector.named(name)]
    assert len(sessions) == 2
    assert all(span.parent_span_id == request.span_id for span in sessions)
    assert {attributes(span)["specgate.request_id"] for span in (request, *sessions)} == {"the-request"}
    told = attributes(request)
    assert told["gen_ai.operation.name"] == "text_completion"
    assert (told["gen_ai.request.model"], told["http.response.status_code"]) == ("fake", 200)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3, 12)
    rounds = collector.named("round")
    drafted = [one for one in rounds if not attributes(one)["specgate.solo"]]
    assert len(drafted) == told["specgate.rounds"] == answer["metrics"]["specgate"]["rounds"] > 1
    assert all(one.parent_span_id == request.span_id for one in rounds)
    assert all(one.start_time_unix_nano <= one.end_time_unix_nano <= request.end_time_unix_nano for one in rounds)


@pytest.mark.parametrize("headers", [{}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, {"traceparent": "nonsense"}])
async def test_what_is_not_sampled_leaves_nothing(collector: Collector, headers: dict[str, str]) -> None:
    assert (await asked(collector, **headers))["usage"]["completion_tokens"] == 12
    assert collector.spans == []


async def test_a_failed_request_says_so_in_its_span(collector: Collector) -> None:
    async with open_site(dying_after(2)) as site:
        answer = await site.client.post(COMPLETIONS, json=BODY | {"max_tokens": 64}, headers=SAMPLED)
    await asyncio.to_thread(tracing.shut_down)
    (request,) = collector.named("POST /v1/completions")
    assert attributes(request)["http.response.status_code"] == answer.status_code == 503


async def test_a_collector_that_is_gone_costs_no_request(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.shut_down()
    # In which it would be asked again.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracing.configure("specgate-test", f"http://{unused_endpoint()}", sample=1.0)
    assert (await asked(collector))["usage"]["completion_tokens"] == 12


async def test_a_request_outlives_the_traces_of_a_gateway_that_stops(collector: Collector) -> None:
    with tracing.span("request", SAMPLED["traceparent"], {}) as span:
        tracing.shut_down()
        tracing.add_child(span, "round", 1000, {})
    assert collector.named("round") == []
