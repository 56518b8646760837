"""The row that is observed as a gateway observes: rounds and tokens are counted and traced, the text is the same."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orchestrator.decode.request import GenerationRequest
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import SamplingParams
from specgate_lab.bench.observed import GatewayObservers, observing
from specgate_lab.bench.pair_variants import pair_variants
from specgate_lab.bench.rows import rows_of
from specgate_lab.variants import Traffic, decode_in_turns
from tests.orchestrator.api.queues import open_room

TOKENS, GAMMA, REPEATS = 24, 3, 2
REQUEST = GenerationRequest(
    (5, 17, 3), SamplingParams(temperature=0.0), max_tokens=TOKENS, gamma=GAMMA, ignore_eos=True
)


def num_traced(gateway: GatewayObservers) -> int:
    traced = [ExportTraceServiceRequest.FromString(one) for one in gateway.exports]
    spans = [span for one in traced for by in one.resource_spans for scope in by.scope_spans for span in scope.spans]
    return sum(span.name == "round" for span in spans)


def num_counted(gateway: GatewayObservers, name: str) -> float:
    found = gateway.registry.get_sample_value(f"specgate_{name}", {"model_name": "bench"})
    assert found is not None
    return found


async def test_every_round_is_counted_and_traced_and_no_other_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that it is taken back, too.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    async with open_room() as room, observing() as gateway:
        orchestrator = room.request_queue.orchestrator
        variants = pair_variants(orchestrator, None, ModelOptions(), REQUEST, Traffic(), gateway.observe)
        samples = await decode_in_turns(variants, [REQUEST], REPEATS)
    observed = samples["spec+observed"]
    assert {one.token_ids for one in observed} == {one.token_ids for one in samples["spec"]}
    # The warm-up is observed too.
    assert TOKENS * REPEATS < num_counted(gateway, "generation_tokens_total") < TOKENS * (REPEATS + 1)
    num_verdicts = num_counted(gateway, "target_confidence_count")
    assert (
        num_verdicts == num_traced(gateway) > sum(stats.target_forwards for one in observed for stats in one.stats) > 0
    )
    rows = {row.name: row for row in rows_of(samples)}
    assert list(rows) == ["target", "spec", "spec+observed", "spec+gate"]
    assert list(rows["spec+observed"].ratios_to_rivals) == ["spec"]
