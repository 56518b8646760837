"""Domain <-> protobuf for the public API. What arrives is checked here or where the request is made."""

from collections.abc import Sequence
from typing import Any

from orchestrator.api.choices import check_num_choices
from orchestrator.api.settings.settings import Defaults
from orchestrator.decode.request import MAX_STOP_STRINGS, Delta, GenerationRequest, GenerationStats
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.rpc.convert import finish_reason_to_pb, token_logprobs_to_pb
from specgate.rpc.convert_grammar import grammar_from_pb
from specgate.rpc.convert_session import sampling_params_from_pb, shortest_float, verification_from_pb
from specgate.rpc.validate import check_length
from specgate.types import MAX_STOP_TOKEN_IDS, TokenSource
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2

_GATES = {pb.Gate.Value(f"GATE_{gate.name}"): gate for gate in Gate}
_SOURCES = {source: pb.TokenSource.Value(f"TOKEN_SOURCE_{source.name}") for source in TokenSource}


def request_from_pb(params: pb.GenerationParams, defaults: Defaults) -> GenerationRequest:
    """Return the request without its prompt. What ``params`` leaves out gets its default.

    Raises:
        InvalidArgument: a value is outside its range; names the field.
    """
    check_length("stop", params.stop, 0, MAX_STOP_STRINGS)
    check_length("stop_token_ids", params.stop_token_ids, 0, MAX_STOP_TOKEN_IDS)
    gate = _gate(params, defaults)
    threshold, draft_threshold = defaults.thresholds_of(gate)
    names_verification = params.verification != types_pb2.VERIFICATION_UNSPECIFIED
    return GenerationRequest(
        prompt_token_ids=(),
        sampling=sampling_params_from_pb(params.sampling),
        max_tokens=params.max_tokens if params.HasField("max_tokens") else defaults.max_tokens,
        seed=params.seed if params.HasField("seed") else None,
        stop=tuple(params.stop),
        stop_token_ids=frozenset(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        gamma=params.gamma if params.HasField("gamma") else defaults.gamma,
        gate=gate,
        gate_threshold=shortest_float(params.gate_threshold) if params.HasField("gate_threshold") else threshold,
        draft_threshold=(
            shortest_float(params.draft_threshold) if params.HasField("draft_threshold") else draft_threshold
        ),
        verification=verification_from_pb(params.verification) if names_verification else defaults.verification,
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        cache_salt=params.cache_salt,
        min_tokens=params.min_tokens,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        grammar=grammar_from_pb(params.grammar) if params.HasField("grammar") else None,
    )


def _gate(params: pb.GenerationParams, defaults: Defaults) -> Gate:
    if params.gate == pb.GATE_UNSPECIFIED:
        return defaults.gate
    if params.gate not in _GATES:
        known = ", ".join(pb.Gate.Name(known) for known in _GATES)
        raise InvalidArgument("gate", f"{int(params.gate)} is not one of {known}")
    return _GATES[params.gate]


def num_choices(params: pb.GenerationParams) -> int:
    """Return the number of choices. Raises InvalidArgument: it is 0 or too large."""
    n = params.n if params.HasField("n") else 1
    check_num_choices(1, n)
    return n


def delta_to_pb(delta: Delta, index: int = 0) -> pb.GenerateStreamResponse:
    """Return the wire's message for choice ``index``."""
    return pb.GenerateStreamResponse(index=index, **_fields([delta]))


def deltas_to_pb(deltas: Sequence[Delta]) -> pb.GenerateResponse:
    """Return all deltas of a request, at least one, as one message."""
    return pb.GenerateResponse(**_fields(deltas))


def _fields(deltas: Sequence[Delta]) -> dict[str, Any]:
    last = deltas[-1]
    return {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token_id for delta in deltas for token_id in delta.token_ids],
        "sources": [_SOURCES[source] for delta in deltas for source in delta.sources],
        "logprobs": [token_logprobs_to_pb(one) for delta in deltas for one in delta.logprobs],
        "finish_reason": finish_reason_to_pb(last.finish_reason),
        "stats": None if last.stats is None else stats_to_pb(last.stats),
        "prompt_logprobs": [token_logprobs_to_pb(one) for delta in deltas for one in delta.prompt_logprobs],
    }


def stats_to_pb(stats: GenerationStats) -> pb.GenerationStats:
    """Return the wire's message."""
    return pb.GenerationStats(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        seed=stats.seed,
        rounds=stats.rounds,
        drafted_tokens=stats.drafted,
        accepted_tokens=stats.accepted,
        solo_tokens=stats.solo_tokens,
        target_forwards=stats.target_forwards,
        near_ties=stats.near_ties,
        followed=stats.followed,
        accepted_by={str(method): count for method, count in stats.accepted_by.items()},
        drafter_failures=stats.drafter_failures,
        verifier_failovers=stats.verifier_failovers,
        cached_tokens=stats.cached_tokens,
    )
