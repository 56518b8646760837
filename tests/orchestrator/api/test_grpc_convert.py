"""The public API's messages: what is absent, what each value means, and what goes out."""

from collections import Counter
from typing import Any

import pytest

from orchestrator.api.grpc.convert import delta_to_pb, deltas_to_pb, request_from_pb
from orchestrator.api.settings.settings import Defaults
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.policy.gates import AUTO_GAMMA, FIXED_GAMMA, Gate
from specgate.types import DraftMethod, FinishReason, SamplingParams, TokenLogprobs, TokenSource, Verification
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2

DEFAULTS = Defaults(
    gamma=3, gate=Gate.TARGET_CONFIDENCE, gate_threshold=0.3, draft_threshold=0.2, max_tokens=9,
    verification=Verification.REJECTION,
)  # fmt: skip


def request(defaults: Defaults = DEFAULTS, **params: Any) -> GenerationRequest:
    # Over the wire: a float32 is not the number that was written.
    sent = pb.GenerationParams(**params).SerializeToString()
    return request_from_pb(pb.GenerationParams.FromString(sent), defaults)


def test_what_is_absent_is_the_servers_default() -> None:
    unsaid = GenerationRequest(
        (), SamplingParams(temperature=1.0), 9, None, gamma=3, gate=Gate.TARGET_CONFIDENCE, gate_threshold=0.3,
        draft_threshold=0.2, verification=Verification.REJECTION,
    )  # fmt: skip
    assert request() == request(sampling=types_pb2.SamplingParams()) == unsaid
    assert request(sampling=types_pb2.SamplingParams(temperature=0)).sampling.greedy


def test_what_is_given_is_taken() -> None:
    given = request(
        sampling=types_pb2.SamplingParams(temperature=0.1, top_k=5), max_tokens=7, seed=0, stop=["a", "b"],
        stop_token_ids=[4], ignore_eos=True, gamma=0, gate=pb.GATE_TARGET_CONFIDENCE, gate_threshold=0.1,
        draft_threshold=0.7, verification=types_pb2.VERIFICATION_SHARED_NOISE, logprobs=0, cache_salt="ours",
    )  # fmt: skip
    assert given == GenerationRequest(
        (), SamplingParams(temperature=0.1, top_k=5), 7, 0, ("a", "b"), frozenset({4}), True, 0,
        Gate.TARGET_CONFIDENCE, 0.1, 0.7, Verification.SHARED_NOISE, 0, "ours",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "gate", "threshold", "own_gamma"),
    [
        (pb.GATE_TARGET_CONFIDENCE, Gate.TARGET_CONFIDENCE, 0.3, FIXED_GAMMA),
        (pb.GATE_DRAFT_CONFIDENCE, Gate.DRAFT_CONFIDENCE, 0.4, FIXED_GAMMA),
        (pb.GATE_NONE, Gate.NONE, 0.0, FIXED_GAMMA),
        (pb.GATE_AUTO, Gate.AUTO, 0.0, AUTO_GAMMA),
    ],
)
def test_the_default_threshold_belongs_to_the_default_gate_and_a_configured_gamma_to_all(
    value: pb.Gate, gate: Gate, threshold: float, own_gamma: int
) -> None:
    assert pb.Gate.Name(value) == f"GATE_{gate.name}"
    asked = request(gate=value)
    assert (asked.gate, asked.threshold, asked.max_gamma) == (gate, threshold, 3)
    assert asked.draft_threshold == (0.2 if gate is DEFAULTS.gate else None)
    assert request(gate=value, gamma=2).max_gamma == 2
    assert request(Defaults(), gate=value).max_gamma == own_gamma


def test_deltas_go_out_one_by_one_or_in_one_sum() -> None:
    sources = tuple(TokenSource)
    accepted_by = Counter({DraftMethod.SUFFIX: 4, DraftMethod.MODEL: 1})
    stats = GenerationStats(2**63, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, accepted_by)
    logprobs = (TokenLogprobs(-0.5, ((1, -0.5), (3, -1.0))), TokenLogprobs(-2.0))
    deltas = (
        Delta((1, 2), sources[:2], "ab", logprobs),
        Delta((3, 4), sources[2:], "c", logprobs, FinishReason.STOP, stats=stats),
    )
    whole, (first, last) = deltas_to_pb(deltas), [delta_to_pb(delta) for delta in deltas]
    assert (whole.text, list(whole.token_ids)) == (first.text + last.text, [1, 2, 3, 4]) == ("abc", [1, 2, 3, 4])
    assert [*first.logprobs, *last.logprobs] == list(whole.logprobs)
    assert [entry.logprob for entry in whole.logprobs] == [-0.5, -2.0, -0.5, -2.0]
    assert list(whole.logprobs[0].top_token_ids) == [1, 3]
    assert [pb.TokenSource.Name(source).removeprefix("TOKEN_SOURCE_").lower() for source in whole.sources] == [*sources]
    # Statistics and reason go with the last one; every count has its own field.
    assert not first.HasField("stats")
    assert first.finish_reason == types_pb2.FINISH_REASON_UNSPECIFIED
    assert (last.stats, last.finish_reason) == (whole.stats, types_pb2.FINISH_REASON_STOP)
    counts = [getattr(last.stats, field.name) for field in last.stats.DESCRIPTOR.fields]
    assert counts == [1, 2, 2**63, 3, 4, 5, 6, 7, 8, 9, 10, 11, {"suffix": 4, "model": 1}, 12]
