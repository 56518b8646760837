"""The prompts of a search or a comparison, and the target's own answers to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.terminal.prompts import Prompt
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.variants import pair_variant

MAX_PROMPTS = 32
"""More take longer and add little: intervals shrink with the root of their number."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedText:
    """An answer of the target, its prompt, and how it was sampled; ``sampling`` is as JSON has it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    seed: int
    sampling: dict[str, Any]


class Recording(NamedTuple):
    """The texts, and the microseconds that one of their tokens took, all included."""

    texts: tuple[RecordedText, ...]
    alone_us: float


async def record_texts(
    orchestrator: Orchestrator, requests: Sequence[GenerationRequest], on_text: Callable[[], None]
) -> Recording:
    """Let the target alone answer every request.

    Raises:
        InvalidArgument: a request does not fit into the target's context, or the answers are too short to time them.
        SpecgateError: a request broke off.
    """
    _check_lengths(requests, orchestrator.target_info.context_length)
    decode, texts, tokens, seconds = pair_variant(orchestrator, TARGET_ALONE), list[RecordedText](), 0, 0.0
    for request in requests:
        sample = await decode(request)
        seed, law = sample.stats[0].seed, sampling_object(request.sampling)
        texts.append(RecordedText(tuple(request.prompt_token_ids), sample.token_ids, seed, law))
        tokens, seconds = tokens + sample.tokens, seconds + sample.seconds
        on_text()
    if tokens == 0 or seconds == 0:
        raise InvalidArgument("max_tokens", "leaves too few tokens to measure the target")
    return Recording(tuple(texts), seconds / tokens * 1e6)


def _check_lengths(requests: Sequence[GenerationRequest], context_length: int) -> None:
    for number, request in enumerate(requests, start=1):
        length = len(request.prompt_token_ids)
        if length + request.max_tokens > context_length:
            problem = f"prompt {number} has {length} tokens, and {request.max_tokens} are to be written: together more"
            raise InvalidArgument("prompts", f"{problem} than the target's context of {context_length}")


def sampling_object(sampling: SamplingParams) -> dict[str, Any]:
    """Return how texts are sampled, as JSON has it."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return {**values, "logit_bias": dict(sampling.logit_bias)}


def few_enough(prompts: Sequence[Prompt], log: Console) -> list[Prompt]:
    """Return the prompts; of many, ``MAX_PROMPTS`` evenly spread ones."""
    if len(prompts) > MAX_PROMPTS:
        log.print(f"{MAX_PROMPTS} of {len(prompts)} prompts are used, evenly spread", style="yellow", highlight=False)
    return spread(prompts, MAX_PROMPTS)


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return up to ``count`` items, evenly spread."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]
