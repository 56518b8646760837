"""Flags that several commands share, and the checks of flags."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from orchestrator.decode.request import GenerationRequest
from orchestrator.terminal.prompts import Prompt, read_prompts
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.workload import BENCH_PROMPTS

MAX_CONCURRENCY = 1024
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The prompts of a measurement."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts: JSON lines with 'prompt' or 'token_ids'.",
            show_default="short Python beginnings",
        ),
    ] = None

    def read(self, request: GenerationRequest, usual: Sequence[str] = BENCH_PROMPTS) -> list[Prompt]:
        """Return the prompts of the file, or the usual ones. Raises as ``read_prompts`` does."""
        return read_prompts(self.prompts, request) if self.prompts else [Prompt(request, text) for text in usual]


def numbers_of(flag: str, given: str | None, number: Callable[[str], N], low: N, high: N) -> tuple[N, ...]:
    """Return the numbers between commas. Raises InvalidArgument for what is none, is out of range or comes twice."""
    if given is None:
        return ()
    try:
        values = tuple(number(part) for part in given.split(","))
    except ValueError:
        raise InvalidArgument(flag, f"{given!r} is no list of numbers, such as 1,2,4") from None
    for value in values:
        check_range(flag, value, low, high)
    if len(set(values)) < len(values):
        raise InvalidArgument(flag, f"{given} names a value twice")
    return values


def names_of(flag: str, given: str | None, known: Iterable[str]) -> tuple[str, ...]:
    """Return the names between commas. Raises InvalidArgument for one that is not known or comes twice."""
    names, known = () if given is None else tuple(given.split(",")), tuple(known)
    for name in names:
        if name not in known:
            raise InvalidArgument(flag, f"{name!r} is not one of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise InvalidArgument(flag, f"{given} names one twice")
    return names


def make_folder(flag: str, folder: Path) -> None:
    """Make a folder to write to. Raises InvalidArgument, with the flag's name, where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(flag, f"{folder} cannot be made: {error.strerror}") from error
