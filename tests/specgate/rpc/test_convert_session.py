"""What opens a session, and what a service says of itself."""

import math
from types import MappingProxyType
from typing import Any

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc import convert_session as convert
from specgate.types import SEED_LIMIT, ModelInfo, SamplingParams, SessionSpec, Verification
from specgate.v1 import types_pb2
from tests.specgate.rpc.wire import over_the_wire

FINGERPRINT = MappingProxyType({"vocabulary": "ab12", "merges": "cd34"})
FIRM = SamplingParams(
    temperature=0.7,
    top_k=50,
    top_p=0.95,
    min_p=0.05,
    repetition_penalty=0.01,
    presence_penalty=-2.0,
    frequency_penalty=1.1,
    logit_bias=MappingProxyType({0: -100.0, 4_000_000_000: 0.3}),
)
PLAIN_SPEC = SessionSpec((0,), SamplingParams(), 0, Verification.SHARED_NOISE, 1)
FULL_SPEC = SessionSpec(
    prompt_token_ids=(1, 0, 4_000_000_000),
    sampling=FIRM,
    seed=SEED_LIMIT - 1,
    verification=Verification.REJECTION,
    max_tokens=10,
    output_token_ids=(5, 6),
    stop_token_ids=frozenset({9, 8}),
    vocab_size=151_643,
    tokenizer_fingerprint=FINGERPRINT,
    logprobs=0,
    cache_salt="tenant ä",
    lease_token="once",
)
INFO = ModelInfo(
    model="org/name",
    role="verifier",
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    device="cuda:0",
    context_length=4096,
    vocab_size=32_000,
    num_parameters=70_000_000_000,
    tokenizer_fingerprint=FINGERPRINT,
    eos_token_ids=(2, 3),
    max_sessions=64,
    kv_tokens=1 << 33,
    proto_version="specgate.v1",
    boot_id="f00",
    active_sessions=3,
    free_kv_tokens=1 << 32,
)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.0), FIRM])
def test_sampling_survives_as_the_user_wrote_it(sampling: SamplingParams) -> None:
    assert convert.sampling_params_from_pb(over_the_wire(convert.sampling_params_to_pb(sampling))) == sampling


def test_absent_sampling_fields_take_their_defaults() -> None:
    assert convert.sampling_params_from_pb(types_pb2.SamplingParams()) == SamplingParams()


def test_a_value_with_no_short_decimal_arrives_as_its_float32() -> None:
    pb = over_the_wire(types_pb2.SamplingParams(temperature=1 / 3))
    assert convert.sampling_params_from_pb(pb).temperature == pytest.approx(1 / 3, rel=1e-7)


@pytest.mark.parametrize("spec", [PLAIN_SPEC, FULL_SPEC])
def test_a_session_survives(spec: SessionSpec) -> None:
    assert convert.session_spec_from_pb(over_the_wire(convert.session_spec_to_pb(spec))) == spec


def test_model_info_survives() -> None:
    assert convert.model_info_from_pb(over_the_wire(convert.model_info_to_pb(INFO))) == INFO


@pytest.mark.parametrize("mode", Verification)
def test_every_mode_has_a_wire_value(mode: Verification) -> None:
    assert convert.verification_from_pb(convert.verification_to_pb(mode)) is mode


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": (1 << 32) - 1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 3.4028234663852886e38}, "repetition_penalty"),
        ({"logit_bias": {7: math.nan}}, "logit_bias[7]"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias (length)"),
    ],
)
def test_bad_sampling_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.sampling_params_from_pb(over_the_wire(types_pb2.SamplingParams(**changes)))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": []}, "prompt_token_ids (length)"),
        ({"prompt_token_ids": range(9)}, "prompt_token_ids (length)"),
        ({"output_token_ids": range(9)}, "output_token_ids (length)"),
        ({"output_token_ids": [1, 2]}, "output_token_ids (length)"),
        ({"verification": 0}, "verification"),
        ({"verification": 99}, "verification"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": range(257)}, "stop_token_ids (length)"),
        ({"logprobs": 21}, "logprobs"),
        ({"cache_salt": "x" * 5000}, "cache_salt (length)"),
        ({"lease_token": "x" * 5000}, "lease_token (length)"),
        ({"tokenizer_fingerprint": {"vocabulary": "x" * 5000}}, "tokenizer_fingerprint (length)"),
        ({"tokenizer_fingerprint": {str(n): "" for n in range(33)}}, "tokenizer_fingerprint (length)"),
        ({"sampling": types_pb2.SamplingParams(temperature=101)}, "temperature"),
    ],
)
def test_a_bad_session_is_refused(changes: dict[str, Any], field: str) -> None:
    pb = types_pb2.SessionSpec(prompt_token_ids=[1], verification=types_pb2.VERIFICATION_REJECTION, max_tokens=1)
    for name in changes:
        pb.ClearField(name)
    pb.MergeFrom(types_pb2.SessionSpec(**changes))
    with pytest.raises(InvalidArgument) as caught:
        convert.session_spec_from_pb(pb, max_sequence_tokens=8)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": 0, "context_length": 1}, "vocab_size"),
        ({"vocab_size": 1, "context_length": 0}, "context_length"),
        ({"eos_token_ids": range(257)}, "eos_token_ids (length)"),
    ],
)
def test_bad_model_info_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.model_info_from_pb(types_pb2.GetModelInfoResponse(**changes))
    assert caught.value.field == field
