"""Convert requests and deltas between the decode loop and ``specgate.client``."""

from collections import Counter
from dataclasses import fields

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from specgate.client import Delta as ServedDelta
from specgate.client import Params, Stats
from specgate.types import DraftMethod, SamplingParams

_SAMPLING = tuple(field.name for field in fields(SamplingParams))
_SHARED = (
    "max_tokens", "seed", "stop", "ignore_eos", "min_tokens", "gamma", "gate", "draft_threshold", "verification",
    "logprobs", "prompt_logprobs", "grammar", "cache_salt",
)  # fmt: skip
_COUNTED = (
    "prompt_tokens", "completion_tokens", "seed", "rounds", "solo_tokens", "target_forwards", "near_ties",
    "drafter_failures", "verifier_failovers", "followed", "cached_tokens",
)  # fmt: skip


def params_of(request: GenerationRequest) -> Params:
    """Return a request's parameters for a running system; a γ of None leaves the choice to the system."""
    return Params(
        **{name: getattr(request.sampling, name) for name in _SAMPLING},
        **{name: getattr(request, name) for name in _SHARED},
        stop_token_ids=tuple(request.stop_token_ids),
        gate_threshold=request.threshold,
    )


def delta_of(delta: ServedDelta) -> Delta:
    """Return the delta in the type of the decode loop."""
    return Delta(delta.token_ids, delta.sources, delta.text, delta.logprobs, delta.finish_reason, delta.prompt_logprobs)


def stats_of(stats: Stats) -> GenerationStats:
    """Return the same counts; times and outcomes of rounds stay on the server."""
    methods = list(DraftMethod)
    return GenerationStats(
        drafted=stats.drafted_tokens,
        accepted=stats.accepted_tokens,
        accepted_by=Counter({DraftMethod(name): num for name, num in stats.accepted_by.items() if name in methods}),
        **{name: getattr(stats, name) for name in _COUNTED},
    )
