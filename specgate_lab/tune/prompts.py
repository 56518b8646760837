"""The prompts that a search or a comparison is made on: enough of them, and not more than it can use."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.terminal.prompts import Prompt, read_prompts
from specgate_lab.workload import BENCH_PROMPTS

MAX_PROMPTS = 32
"""More take longer and tell little more: intervals shrink with the root of their number."""
T = TypeVar("T")


def chosen_prompts(file: Path | None, request: GenerationRequest, log: Console) -> list[Prompt]:
    """Return the prompts of a file, or short Python beginnings; of many, ``MAX_PROMPTS`` evenly spread ones.

    Raises:
        InvalidArgument: the file cannot be read, see ``read_prompts``.
    """
    if file is None:
        return [Prompt(request, text) for text in BENCH_PROMPTS]
    prompts = read_prompts(file, request)
    if len(prompts) > MAX_PROMPTS:
        log.print(f"{MAX_PROMPTS} of {len(prompts)} prompts are used, evenly spread", style="yellow", highlight=False)
    return spread(prompts, MAX_PROMPTS)


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return up to ``count`` items, evenly spread."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]
