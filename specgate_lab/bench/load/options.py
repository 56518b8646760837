"""The flags of ``bench`` that measure many requests at a time."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.bench.load.levels import Level, Sweep
from specgate_lab.options import MAX_CONCURRENCY, make_folder, numbers_of
from specgate_lab.report import check_can_draw

MAX_RATE = 10_000.0
MIN_RATE = 0.001
MAX_REQUESTS = 1_000_000
MAX_PROMPT_TOKENS = 1 << 20
DEFAULT_STREAMS = 8
OPEN_LOOP_SESSIONS = 64
"""What services of our own hold at a rate; what arrives beyond it is refused and counted."""
_flag = partial(typer.Option, rich_help_panel="Load")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Levels of load, each with speculation off and on.

    Raises:
        InvalidArgument: a value is outside its range, or a flag needs another one; the message names the flag.
    """

    concurrency: Annotated[
        str | None,
        _flag(metavar="N,N,...", help="Measure load: N clients; each sends its next request when it has its answer."),
    ] = None
    rate: Annotated[
        str | None, _flag(metavar="R,R,...", help="Measure load: R requests per second, with Poisson arrivals.")
    ] = None
    requests: Annotated[
        int | None,
        _flag(
            metavar="N",
            help="Requests per measurement.",
            show_default="3 a client, at least 8; 10 s at a rate, at least 32",
        ),
    ] = None
    long_prompt: Annotated[
        int | None,
        _flag(
            metavar="TOKENS",
            help="Measure the delay of streaming sessions when a prompt of so many tokens arrives. The number of "
            f"sessions is the largest --concurrency, {DEFAULT_STREAMS} without it.",
        ),
    ] = None
    plots: Annotated[Path | None, _flag(metavar="FOLDER", help="Plot the tables as PNG; needs the extra 'bench'.")] = (
        None
    )

    def __post_init__(self) -> None:
        levels = self.levels
        for flag, value, most in (
            ("requests", self.requests, MAX_REQUESTS),
            ("long_prompt", self.long_prompt, MAX_PROMPT_TOKENS),
        ):
            if value is not None:
                check_range(flag, value, 1, most)
        if self.requests is not None and not levels:
            raise InvalidArgument("requests", "is for --concurrency and --rate; neither is given")
        if self.plots is not None and self.long_prompt is not None and not levels:
            raise InvalidArgument("plots", "is for --concurrency and --rate; neither is given")

    @property
    def is_wanted(self) -> bool:
        return bool(self.levels) or self.long_prompt is not None

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels, as they were given, the closed loops first."""
        rates = numbers_of("rate", self.rate, float, MIN_RATE, MAX_RATE)
        closed = (Level(Sweep.CONCURRENCY, value) for value in self._clients)
        return (*closed, *(Level(Sweep.RATE, value) for value in rates))

    @property
    def num_streams(self) -> int:
        """Sessions that stream while the long prompt arrives."""
        return max(self._clients, default=DEFAULT_STREAMS)

    @property
    def num_sessions(self) -> int:
        """What services of our own must hold at a time; what is freed may be taken again before it is free."""
        streams = self.num_streams + 1 if self.long_prompt is not None else 0
        return 2 * max(max(self._clients, default=0), streams, OPEN_LOOP_SESSIONS // 2 if self.rate else 0)

    @property
    def _clients(self) -> tuple[int, ...]:
        return numbers_of("concurrency", self.concurrency, int, 1, MAX_CONCURRENCY)

    def prepare(self) -> None:
        """Make the folder of the plots. Raises InvalidArgument where that cannot be, or matplotlib is missing."""
        if self.plots is not None:
            check_can_draw("plots")
            make_folder("plots", self.plots)
