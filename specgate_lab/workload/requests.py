"""The requests that measurements are made of: of one length, with the same seed, and with something to compare."""

from dataclasses import replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.request_options import (
    DEFAULT_MAX_TOKENS,
    DraftingOptions,
    SamplingOptions,
    fixed_gamma,
    request_for,
)
from specgate.errors import InvalidArgument


def bench_request(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> GenerationRequest:
    """Return the request of all rows, the gate being the gated row's; ``max_tokens`` is a default.

    Raises:
        InvalidArgument: γ is 0, which leaves nothing to compare.
    """
    request = load_request(models, drafting, sampling, max_tokens)
    if drafting.gate in (None, Gate.NONE):
        # The latter, and the default, have rows of their own.
        return replace(request, gate=Gate.TARGET_CONFIDENCE, gamma=fixed_gamma(models, drafting.gamma))
    return request


def load_request(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> GenerationRequest:
    """Return the request with speculation on, its gate as it was asked for. Raises as ``bench_request`` does."""
    request = request_for(models, drafting, sampling, max_tokens)
    if request.max_gamma == 0:
        raise InvalidArgument("gamma", "0 leaves nothing to compare; the smallest value here is 1")
    return full_length(request)


def full_length(request: GenerationRequest) -> GenerationRequest:
    """Return the request with nothing that ends it early, and a seed that all rows share."""
    return replace(request, ignore_eos=True, stop=(), stop_token_ids=frozenset(), seed=request.seed or 0)


def request_object(request: GenerationRequest) -> dict[str, Any]:
    """Return what the requests of a measurement have in common, as ``--json`` writes it."""
    return {
        "max_tokens": request.max_tokens,
        "gamma": request.max_gamma,
        "gate": str(request.gate),
        "gate_threshold": request.threshold,
        "verification": str(request.verification),
        "temperature": request.sampling.temperature,
        "seed": request.seed,
    }
