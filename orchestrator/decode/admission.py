"""The check that a request fits the target, and what its sessions are opened with."""

import secrets

from orchestrator.decode.request import GenerationRequest
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_token_ids
from specgate.types import ModelInfo, SessionSpec

RANDOM_SEED_BITS = 63


def make_spec(request: GenerationRequest, target: ModelInfo, *, has_text: bool) -> SessionSpec:
    """Return what both services are opened with; a request without a seed gets a random one.

    Args:
        has_text: whether there is a tokenizer, which stop strings need.

    Raises:
        InvalidArgument: the request does not fit the target; the message names field, value and limit.
    """
    check_token_ids("prompt_token_ids", request.prompt_token_ids, target.vocab_size)
    check_token_ids("stop_token_ids", request.stop_token_ids, target.vocab_size)
    check_token_ids("logit_bias", request.sampling.logit_bias, target.vocab_size)
    if request.stop and not has_text:
        raise InvalidArgument("stop", "stop strings need the target's tokenizer, which is not here")
    eos_token_ids = frozenset() if request.ignore_eos else frozenset(target.eos_token_ids)
    spec = SessionSpec(
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        seed=secrets.randbits(RANDOM_SEED_BITS) if request.seed is None else request.seed,
        verification=request.verification,
        max_tokens=request.max_tokens,
        stop_token_ids=request.stop_token_ids | eos_token_ids,
        vocab_size=target.vocab_size,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        logprobs=request.logprobs,
        cache_salt=request.cache_salt,
        min_tokens=request.min_tokens,
        prompt_logprobs=request.prompt_logprobs,
        grammar=request.grammar,
    )
    if spec.max_length > target.context_length:
        raise InvalidArgument(
            "max_tokens",
            f"{len(spec.prompt_token_ids)} prompt tokens + {spec.max_tokens} pass the target's context length "
            f"of {target.context_length}",
        )
    return spec
