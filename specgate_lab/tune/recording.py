"""The prompts of a comparison, and how long the target's own answers to them are."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.terminal.prompts import Prompt
from specgate.errors import InvalidArgument
from specgate_lab.experiment import Sample
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.variants import pair_variant

MAX_PROMPTS = 32
"""More take longer and add little: intervals shrink with the root of their number."""
T = TypeVar("T")


class Recording(NamedTuple):
    """The tokens of each answer, and the microseconds that a token took, all included."""

    lengths: tuple[int, ...]
    alone_us: float


async def record_answers(
    orchestrator: Orchestrator, requests: Sequence[GenerationRequest], on_answer: Callable[[], None]
) -> Recording:
    """Let the target alone answer every request.

    Raises:
        InvalidArgument: a request does not fit into the target's context, or the answers are too short to time them.
        SpecgateError: a request broke off.
    """
    _check_lengths(requests, orchestrator.target_info.context_length)
    decode, samples = pair_variant(orchestrator, TARGET_ALONE), list[Sample]()
    for request in requests:
        samples.append(await decode(request))
        on_answer()
    tokens, seconds = sum(sample.tokens for sample in samples), sum(sample.seconds for sample in samples)
    if tokens == 0 or seconds == 0:
        raise InvalidArgument("max_tokens", "leaves too few tokens to measure the target")
    return Recording(tuple(len(sample.token_ids) for sample in samples), seconds / tokens * 1e6)


def _check_lengths(requests: Sequence[GenerationRequest], context_length: int) -> None:
    for number, request in enumerate(requests, start=1):
        length = len(request.prompt_token_ids)
        if length + request.max_tokens > context_length:
            problem = f"prompt {number} has {length} tokens, and {request.max_tokens} are to be written: together more"
            raise InvalidArgument("prompts", f"{problem} than the target's context of {context_length}")


def few_enough(prompts: Sequence[Prompt], log: Console) -> list[Prompt]:
    """Return the prompts; of many, ``MAX_PROMPTS`` evenly spread ones."""
    if len(prompts) > MAX_PROMPTS:
        log.print(f"{MAX_PROMPTS} of {len(prompts)} prompts are used, evenly spread", style="yellow", highlight=False)
    return spread(prompts, MAX_PROMPTS)


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return up to ``count`` items, evenly spread."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]
