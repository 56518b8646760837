"""What the target writes on the user's prompts, and how fast: what every set of blocks is judged by."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from orchestrator.terminal.results import Collector
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams


@dataclass(frozen=True, slots=True)
class RecordedText:
    """An answer of the target, and what it was asked and drawn with; ``sampling`` is as JSON has it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    seed: int
    sampling: dict[str, Any]

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self)


class Recording(NamedTuple):
    """The texts, and the microseconds that a token of them took, all included."""

    texts: tuple[RecordedText, ...]
    alone_us: float


async def record_texts(
    orchestrator: Orchestrator, requests: Sequence[GenerationRequest], on_text: Callable[[], None]
) -> Recording:
    """Let the target alone answer every request.

    Raises:
        InvalidArgument: the answers are too short to time them.
        SpecgateError: a request broke off.
    """
    texts, tokens, seconds = list[RecordedText](), 0, 0.0
    for request in requests:
        collector = Collector()
        async with orchestrator.generate(replace(request, gamma=0, gate=Gate.NONE)) as generation:
            async for delta in generation:
                collector.add(delta, time.perf_counter())
            result = collector.result(generation.stats)
        law = sampling_object(request.sampling)
        texts.append(RecordedText(tuple(request.prompt_token_ids), result.token_ids, result.stats.seed, law))
        tokens, seconds = tokens + result.decode_tokens, seconds + result.last_s - result.first_s
        on_text()
    if tokens == 0 or seconds == 0:
        raise InvalidArgument("max_tokens", "leaves too few tokens to tell how fast the target is")
    return Recording(tuple(texts), seconds / tokens * 1e6)


def check_lengths(requests: Sequence[GenerationRequest], context_length: int) -> None:
    """Raise InvalidArgument for the first request that does not fit into the target's context."""
    for number, request in enumerate(requests, start=1):
        length = len(request.prompt_token_ids)
        if length + request.max_tokens > context_length:
            problem = f"prompt {number} has {length} tokens, and {request.max_tokens} are to be written: together more"
            raise InvalidArgument("prompts", f"{problem} than the target's context of {context_length}")


def sampling_object(sampling: SamplingParams) -> dict[str, Any]:
    """Return how texts are sampled, as JSON has it."""
    told = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return {**told, "logit_bias": dict(sampling.logit_bias)}
