"""Domain <-> protobuf for what opens a session and what a service says of itself.

Every ``*_from_pb`` raises InvalidArgument, naming field, value and limit, before it copies anything of size.
"""

import struct
from collections.abc import Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from specgate.errors import InvalidArgument
from specgate.rpc.convert import draft_method_from_pb, draft_method_to_pb
from specgate.rpc.convert_grammar import grammar_from_pb, grammar_to_pb
from specgate.rpc.validate import MAX_SEQUENCE_TOKENS, MAX_TEXT, check_fingerprint, check_length
from specgate.types import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    SAMPLING_FIELDS,
    ForwardCost,
    ModelInfo,
    SamplingParams,
    SessionSpec,
    Verification,
    check_range,
)
from specgate.v1 import types_pb2 as pb2

_VERIFICATION_TO_PB: dict[Verification, pb2.Verification] = {
    mode: getattr(pb2, f"VERIFICATION_{mode.name}") for mode in Verification
}
_VERIFICATION_FROM_PB = {value: mode for mode, value in _VERIFICATION_TO_PB.items()}
_SAMPLING_NUMBERS = [name for name in SAMPLING_FIELDS if name != "logit_bias"]
_CONVERTED_INFO = {"tokenizer_fingerprint", "eos_token_ids", "forward_costs", "draft_method", "capabilities"}
_INFO_FIELDS = [field.name for field in fields(ModelInfo) if field.name not in _CONVERTED_INFO]
"""The fields of ``ModelInfo`` that are on the wire as they are."""
MAX_EOS_TOKEN_IDS = 256
MAX_FORWARD_COSTS = 64
MAX_CAPABILITIES = 64
_FLOAT32_DIGITS = range(6, 10)


def shortest_float(value: float) -> float:
    """Return the shortest decimal that is this float32.

    0.01 crosses the wire as 0.00999999978, which is below the limit 0.01 and not what the user wrote.
    """
    for digits in _FLOAT32_DIGITS:
        candidate = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", candidate))[0] == value:
            return candidate
    return value


def verification_to_pb(mode: Verification) -> pb2.Verification:
    return _VERIFICATION_TO_PB[mode]


def verification_from_pb(value: pb2.Verification) -> Verification:
    """Return the domain's enum value; unspecified and unknown ones raise InvalidArgument."""
    mode = _VERIFICATION_FROM_PB.get(value)
    if mode is None:
        known = ", ".join(pb2.Verification.Name(known) for known in _VERIFICATION_FROM_PB)
        raise InvalidArgument("verification", f"{int(value)} is not one of {known}")
    return mode


def sampling_params_to_pb(sampling: SamplingParams) -> pb2.SamplingParams:
    """Return the wire's message with every field set."""
    return pb2.SamplingParams(**sampling.as_dict())


def sampling_params_from_pb(pb: pb2.SamplingParams) -> SamplingParams:
    """Return the domain's value; absent fields take their defaults."""
    check_length("logit_bias", pb.logit_bias, 0, MAX_LOGIT_BIAS)
    given = {name: getattr(pb, name) for name in _SAMPLING_NUMBERS if pb.HasField(name)}
    numbers: dict[str, Any] = {
        name: shortest_float(value) if isinstance(value, float) else value for name, value in given.items()
    }
    logit_bias = {token_id: shortest_float(bias) for token_id, bias in pb.logit_bias.items()}
    return SamplingParams(logit_bias=MappingProxyType(logit_bias), **numbers)


def session_spec_to_pb(spec: SessionSpec) -> pb2.SessionSpec:
    return pb2.SessionSpec(
        prompt_token_ids=spec.prompt_token_ids,
        output_token_ids=spec.output_token_ids,
        sampling=sampling_params_to_pb(spec.sampling),
        seed=spec.seed,
        verification=verification_to_pb(spec.verification),
        max_tokens=spec.max_tokens,
        stop_token_ids=sorted(spec.stop_token_ids),
        vocab_size=spec.vocab_size,
        tokenizer_fingerprint=spec.tokenizer_fingerprint,
        logprobs=spec.logprobs,
        cache_salt=spec.cache_salt,
        lease_token=spec.lease_token,
        min_tokens=spec.min_tokens,
        prompt_logprobs=spec.prompt_logprobs,
        grammar=grammar_to_pb(spec.grammar),
        first_position=spec.first_position,
    )


def session_spec_from_pb(pb: pb2.SessionSpec, max_sequence_tokens: int = MAX_SEQUENCE_TOKENS) -> SessionSpec:
    """Return the domain's value. Token ids are not held against a vocabulary here: the service knows it."""
    _check_session_sizes(pb, max_sequence_tokens)
    return SessionSpec(
        prompt_token_ids=tuple(pb.prompt_token_ids),
        output_token_ids=tuple(pb.output_token_ids),
        sampling=sampling_params_from_pb(pb.sampling),
        seed=pb.seed,
        verification=verification_from_pb(pb.verification),
        max_tokens=pb.max_tokens,
        stop_token_ids=frozenset(pb.stop_token_ids),
        vocab_size=pb.vocab_size,
        tokenizer_fingerprint=MappingProxyType(dict(pb.tokenizer_fingerprint)),
        logprobs=pb.logprobs if pb.HasField("logprobs") else None,
        cache_salt=pb.cache_salt,
        lease_token=pb.lease_token,
        min_tokens=pb.min_tokens,
        prompt_logprobs=pb.prompt_logprobs if pb.HasField("prompt_logprobs") else None,
        grammar=grammar_from_pb(pb.grammar) if pb.HasField("grammar") else None,
        first_position=pb.first_position,
    )


def _check_session_sizes(pb: pb2.SessionSpec, max_sequence_tokens: int) -> None:
    check_length("prompt_token_ids", pb.prompt_token_ids, 1, max_sequence_tokens)
    check_length("output_token_ids", pb.output_token_ids, 0, max_sequence_tokens)
    check_length("stop_token_ids", pb.stop_token_ids, 0, MAX_STOP_TOKEN_IDS)
    check_fingerprint("tokenizer_fingerprint", pb.tokenizer_fingerprint, pb.tokenizer_fingerprint.values())
    check_length("cache_salt", pb.cache_salt, 0, MAX_TEXT)
    check_length("lease_token", pb.lease_token, 0, MAX_TEXT)


def model_info_to_pb(info: ModelInfo) -> pb2.GetModelInfoResponse:
    return pb2.GetModelInfoResponse(
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        eos_token_ids=info.eos_token_ids,
        draft_method=draft_method_to_pb(info.draft_method),
        capabilities=sorted(info.capabilities),
        forward_costs=[pb2.ForwardCost(**one._asdict()) for one in info.forward_costs],
        **{name: getattr(info, name) for name in _INFO_FIELDS},
    )


def model_info_from_pb(pb: pb2.GetModelInfoResponse) -> ModelInfo:
    check_length("eos_token_ids", pb.eos_token_ids, 0, MAX_EOS_TOKEN_IDS)
    check_length("capabilities", pb.capabilities, 0, MAX_CAPABILITIES)
    check_fingerprint("tokenizer_fingerprint", pb.tokenizer_fingerprint, pb.tokenizer_fingerprint.values())
    check_range("context_length", pb.context_length, 1, 1 << 31)
    check_range("vocab_size", pb.vocab_size, 1, 1 << 31)
    return ModelInfo(
        tokenizer_fingerprint=MappingProxyType(dict(pb.tokenizer_fingerprint)),
        eos_token_ids=tuple(pb.eos_token_ids),
        forward_costs=_forward_costs_from_pb(pb.forward_costs),
        draft_method=draft_method_from_pb(pb.draft_method),
        capabilities=frozenset(pb.capabilities),
        **{name: getattr(pb, name) for name in _INFO_FIELDS},
    )


def _forward_costs_from_pb(pbs: Sequence[pb2.ForwardCost]) -> tuple[ForwardCost, ...]:
    check_length("forward_costs", pbs, 0, MAX_FORWARD_COSTS)
    costs = tuple(ForwardCost(pb.rows, pb.forward_us, pb.context_us) for pb in pbs)
    for before, cost in zip((ForwardCost(0, 1), *costs), costs, strict=False):
        check_range("forward_costs.rows", cost.rows, 1, MAX_SEQUENCE_TOKENS)
        if cost.rows <= before.rows:
            raise InvalidArgument("forward_costs.rows", f"{cost.rows} comes after {before.rows}; they rise")
        check_range("forward_costs.forward_us", cost.forward_us, 1, (1 << 32) - 1)
    return costs
