"""The public API's messages: what is absent, what each value means, and what goes out."""

from typing import Any

import pytest

from orchestrator.api.grpc.convert import delta_to_pb, deltas_to_pb, request_from_pb, stats_to_pb
from orchestrator.api.settings.settings import Defaults
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.policy.gates import AUTO_GAMMA, FIXED_GAMMA, Gate
from specgate.types import FinishReason, SamplingParams, TokenLogprobs, TokenSource, Verification
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2

DEFAULTS = Defaults(
    gamma=3, gate=Gate.DRAFT_CONFIDENCE, gate_threshold=0.3, verification=Verification.REJECTION, max_tokens=9
)


def request(**params: Any) -> GenerationRequest:
    # Over the wire: a float32 is not the number that was written.
    sent = pb.GenerationParams(**params).SerializeToString()
    return request_from_pb(pb.GenerationParams.FromString(sent), DEFAULTS)


def test_what_is_absent_is_the_servers_default() -> None:
    assert request() == GenerationRequest(
        (), SamplingParams(), 9, None, gamma=3, gate=Gate.DRAFT_CONFIDENCE, gate_threshold=0.3,
        verification=Verification.REJECTION,
    )  # fmt: skip


def test_gamma_is_the_gates_own_where_nothing_was_configured() -> None:
    unsaid = request_from_pb(pb.GenerationParams(), Defaults())
    assert (unsaid.gate, unsaid.max_gamma) == (Gate.AUTO, AUTO_GAMMA)
    fixed = request_from_pb(pb.GenerationParams(gate=pb.GATE_TARGET_CONFIDENCE), Defaults())
    assert (fixed.gate, fixed.max_gamma) == (Gate.TARGET_CONFIDENCE, FIXED_GAMMA)


def test_absent_and_empty_sampling_are_the_same() -> None:
    assert request(sampling=types_pb2.SamplingParams()) == request()
    assert request().sampling.temperature == 1.0
    assert request(sampling=types_pb2.SamplingParams(temperature=0)).sampling.greedy


def test_what_is_given_is_taken() -> None:
    given = request(
        sampling=types_pb2.SamplingParams(temperature=0.1, top_k=5),
        max_tokens=7,
        seed=0,
        stop=["a", "b"],
        stop_token_ids=[4],
        ignore_eos=True,
        gamma=0,
        gate=pb.GATE_TARGET_CONFIDENCE,
        gate_threshold=0.1,
        verification=types_pb2.VERIFICATION_SHARED_NOISE,
        logprobs=0,
        cache_salt="ours",
    )
    assert given == GenerationRequest(
        (), SamplingParams(temperature=0.1, top_k=5), 7, 0, ("a", "b"), frozenset({4}), True, 0,
        Gate.TARGET_CONFIDENCE, 0.1, Verification.SHARED_NOISE, 0, "ours",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "gate", "threshold"),
    [
        (pb.GATE_UNSPECIFIED, Gate.DRAFT_CONFIDENCE, 0.3),
        (pb.GATE_DRAFT_CONFIDENCE, Gate.DRAFT_CONFIDENCE, 0.3),
        (pb.GATE_TARGET_CONFIDENCE, Gate.TARGET_CONFIDENCE, 0.5),
        (pb.GATE_NONE, Gate.NONE, 0.0),
    ],
)
def test_the_default_threshold_belongs_to_the_default_gate(value: pb.Gate, gate: Gate, threshold: float) -> None:
    asked = request(gate=value)
    assert (asked.gate, asked.threshold) == (gate, threshold)


def test_every_gate_has_its_name_on_the_wire() -> None:
    assert {f"GATE_{gate.name}" for gate in Gate} == set(pb.Gate.keys()) - {"GATE_UNSPECIFIED"}
    assert {request(gate=pb.Gate.Value(f"GATE_{gate.name}")).gate for gate in Gate} == set(Gate)


def test_a_configured_gamma_holds_for_every_gate() -> None:
    assert request(gate=pb.GATE_AUTO).gamma == request(gate=pb.GATE_NONE).gamma == 3
    assert request(gate=pb.GATE_AUTO, gamma=2).gamma == 2


SOURCES = tuple(TokenSource)
DELTAS = (
    Delta((1, 2), SOURCES[:2], "ab", (TokenLogprobs(-0.5, ((1, -0.5), (3, -1.0))), TokenLogprobs(-2.0))),
    Delta((3, 4), SOURCES[2:], "c", (TokenLogprobs(-1.0), TokenLogprobs(-3.0)), FinishReason.STOP),
)
STATS = GenerationStats(2**63, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


def test_statistics_and_reason_go_with_the_last_delta() -> None:
    first, last = (delta_to_pb(delta, STATS) for delta in DELTAS)
    assert (first.text, list(first.token_ids)) == ("ab", [1, 2])
    assert list(first.logprobs[0].top_token_ids) == [1, 3]
    assert not first.HasField("stats")
    assert first.finish_reason == types_pb2.FINISH_REASON_UNSPECIFIED
    assert last.stats == stats_to_pb(STATS)
    assert last.finish_reason == types_pb2.FINISH_REASON_STOP


def test_the_whole_is_the_sum_of_its_deltas() -> None:
    whole = deltas_to_pb(DELTAS, STATS)
    assert (whole.text, list(whole.token_ids), whole.finish_reason) == ("abc", [1, 2, 3, 4], 1)
    assert [entry.logprob for entry in whole.logprobs] == [-0.5, -2.0, -1.0, -3.0]
    assert [pb.TokenSource.Name(source).removeprefix("TOKEN_SOURCE_").lower() for source in whole.sources] == [*SOURCES]


def test_every_count_has_its_own_field() -> None:
    sent = stats_to_pb(STATS)
    values = [getattr(sent, field.name) for field in sent.DESCRIPTOR.fields]
    assert values == [1, 2, 2**63, 3, 4, 5, 6, 7, 8, 9, 10, 11]
