"""``/metrics`` of a gateway: what Prometheus reads after requests that went well, badly, and not at all."""

from collections.abc import Mapping

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.api.failures import FAILED_HERE, OUT_OF_REACH
from orchestrator.api.metrics.rounds import RoundMetrics
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import DraftMethod, Proposal, RoundPlan, RoundRecord, RoundTiming, SessionSpec, Verdict
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, open_site
from tests.orchestrator.api.queues import Hanging, dying_after
from tests.support.fakes import FakeVerifier, Fault
from tests.support.patience import eventually

Samples = Mapping[str, float]
"""By name and those labels that are not the model's: ``tokens_total{source=solo}``."""


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            told = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            found[sample.name.removeprefix("specgate_") + (f"{{{told}}}" if told else "")] = sample.value
    return found


async def metrics(client: httpx2.AsyncClient) -> dict[str, float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


async def test_a_gateway_counts_requests_tokens_and_rounds() -> None:
    async with open_site() as site:
        client = site.client
        assert (await metrics(client))["spec_decode_num_drafts_total"] == 0
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": 12, "gamma": 3, "gate": "none", "ignore_eos": True}
        whole = (await client.post(COMPLETIONS, json=body)).json()
        told = whole["metrics"]["speculative_decoding"]
        found = await metrics(client)
    assert found["prompt_tokens_total"] == len(PROMPT)
    assert found["generation_tokens_total"] == 12
    assert found["spec_decode_num_drafts_total"] == told["num_spec_steps"] > 0
    assert found["spec_decode_num_draft_tokens_total"] == told["num_draft_tokens"]
    assert found["spec_decode_num_accepted_tokens_total"] == told["num_accepted_draft_tokens"]
    by_position = [found.get(f"spec_decode_num_accepted_tokens_per_pos_total{{position={i}}}", 0) for i in range(4)]
    assert sum(by_position) == told["num_accepted_draft_tokens"]
    assert by_position == sorted(by_position, reverse=True)
    assert sum(value for name, value in found.items() if name.startswith("tokens_total")) == 12
    assert found["request_success_total{finished_reason=length}"] == 1
    assert found["time_to_first_token_seconds_count"] == found["request_queue_time_seconds_count"] == 1
    assert found["request_generation_tokens_sum"] == 12
    assert found["e2e_request_latency_seconds_count"] == 1
    assert found["round_seconds_count{phase=round}"] == told["num_spec_steps"]
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0


async def test_gauges_follow_the_queue_and_a_client_that_leaves_is_an_aborted_request() -> None:
    async with open_site(Hanging, max_running=1, max_queued=1) as site:
        client = site.client
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": 12, "n": 2, "stream": True}
        async with client.stream("POST", COMPLETIONS, json=body) as answer:
            lines = answer.aiter_lines()  # kept: one that is dropped closes the connection
            await anext(lines)
            found = await metrics(client)
            assert (found["num_requests_running"], found["num_requests_waiting"]) == (1, 1)
            assert (await client.post(COMPLETIONS, json=body | {"n": 1})).status_code == 429
        await eventually(lambda: site.room.request_queue.num_inside == 0)
        found = await metrics(client)
    assert found["request_success_total{finished_reason=abort}"] == 2
    assert found["requests_rejected_total{reason=TOO_MANY_SESSIONS}"] == 1


async def test_a_verifier_that_dies_is_a_fallback_with_its_reason() -> None:
    async with open_site(dying_after(2)) as site:
        client = site.client
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": 64, "gamma": 2, "ignore_eos": True}
        answer = await client.post(COMPLETIONS, json=body)
        found = await metrics(client)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == OUT_OF_REACH
    assert found["fallbacks_total{reason=SERVICE_UNAVAILABLE,service=verifier}"] > 0
    assert found["request_success_total{finished_reason=error}"] == 1


async def test_a_verifier_that_answers_nonsense_is_told_without_its_address() -> None:
    nonsense = dict.fromkeys((0, 1), Fault.NONSENSE)
    async with open_site(lambda spec: FakeVerifier(spec, faults=nonsense)) as site:
        answer = await site.client.post(COMPLETIONS, json={"model": "fake", "prompt": PROMPT, "max_tokens": 4})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, FAILED_HERE)


async def test_what_turns_out_to_be_impossible_is_no_failure_of_ours() -> None:
    def refusing(spec: SessionSpec) -> FakeVerifier:
        raise InvalidArgument("grammar", "leads nowhere after 0 tokens: too many items")

    async with open_site(refusing) as site:
        client = site.client
        answer = await client.post(COMPLETIONS, json={"model": "fake", "prompt": PROMPT, "max_tokens": 4})
        found = await metrics(client)
    assert answer.status_code == 400
    assert found["request_success_total{finished_reason=abort}"] == 1


@pytest.mark.parametrize(
    ("plan", "proposal", "verdict", "counted"),
    [
        (RoundPlan(2), Proposal((1, 2)), Verdict(1, 2, 9, 0.7), {"accepted": 2, "bonus": 1, "draft": 1}),
        (RoundPlan(2), Proposal((1, 2)), Verdict(1, 1, 9, 0.7), {"accepted": 1, "recovered": 1, "draft": 1}),
        (
            *(RoundPlan(3, stop_below=0.4), Proposal((1,), draft_confidences=(0.3,))),
            *(Verdict(1, 0, 9, 0.7), {"recovered": 1, "cut": 1}),
        ),
        (
            RoundPlan(3),
            Proposal((1,), method=DraftMethod.SUFFIX),
            Verdict(1, 1, None, 0.7),
            {"accepted_suffix": 1, "draft": 1},
        ),
        (RoundPlan(0), Proposal(), Verdict(1, 0, 9, 0.3), {"solo": 1}),
        (RoundPlan(3), Proposal(), Verdict(1, 0, 9, 0.3), {"solo": 1, "no_draft": 1}),
    ],
)
def test_each_kind_of_verdict_is_counted_once(
    plan: RoundPlan, proposal: Proposal, verdict: Verdict, counted: Samples
) -> None:
    rounds = RoundMetrics("fake")
    rounds.on_record(RoundRecord(plan, proposal, verdict, verdict.num_emitted, timing=RoundTiming(5000)))
    rounds.on_loss("drafter", ServiceUnavailable("it is gone"))
    rounds.on_loss("verifier", None)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in rounds.collect()
        for sample in family.samples
        if sample.value
    }
    told = {key[-1]: value for key, value in found.items() if key[0] in ("specgate_tokens_total",)}
    told |= {
        key[-1]: value
        for key, value in found.items()
        if key[0] == "specgate_gate_decisions_total" and key[-1] != "solo"
    }
    assert told == counted
    assert {key[2:] for key in found if key[0] == "specgate_fallbacks_total"} == {
        ("drafter", "SERVICE_UNAVAILABLE"),
        ("verifier", "INTERNAL"),
    }
