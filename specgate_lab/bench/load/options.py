"""How much load, and what is made of it: the flags of ``bench`` that measure many requests at a time."""

from dataclasses import dataclass
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
_LOAD = "Load"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Levels of load, each with speculation off and on.

    Raises:
        InvalidArgument: a value is outside its range, or a flag needs another one; the message names the flag.
    """

    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Measure load: N clients; each sends its next request when it has its answer.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...", help="Measure load: R requests per second, with Poisson arrivals.", rich_help_panel=_LOAD
        ),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Requests per measurement.",
            show_default="3 a client, at least 8; 10 s at a rate, at least 32",
            rich_help_panel=_LOAD,
        ),
    ] = None
    long_prompt: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Measure the delay of streaming sessions when a prompt of so many tokens arrives. The number of "
            f"sessions is the largest --concurrency, {DEFAULT_STREAMS} without it.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    plots: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Plot the tables as PNG; needs the extra 'bench'.", rich_help_panel=_LOAD),
    ] = None

    def __post_init__(self) -> None:
        levels = self.levels
        check_range("requests", 1 if self.requests is None else self.requests, 1, MAX_REQUESTS)
        check_range("long_prompt", 1 if self.long_prompt is None else self.long_prompt, 1, MAX_PROMPT_TOKENS)
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
        clients = numbers_of("concurrency", self.concurrency, int, 1, MAX_CONCURRENCY)
        rates = numbers_of("rate", self.rate, float, MIN_RATE, MAX_RATE)
        return (
            *(Level(Sweep.CONCURRENCY, value) for value in clients),
            *(Level(Sweep.RATE, value) for value in rates),
        )

    @property
    def num_streams(self) -> int:
        """Sessions that stream while the long prompt arrives."""
        return int(max((one.value for one in self._closed_loops), default=DEFAULT_STREAMS))

    @property
    def num_sessions(self) -> int:
        """What services of our own must hold at a time; what is freed may be taken again before it is free."""
        clients = max((int(one.value) for one in self._closed_loops), default=0)
        streams = self.num_streams + 1 if self.long_prompt is not None else 0
        return 2 * max(clients, streams, OPEN_LOOP_SESSIONS // 2 if self.rate else 0)

    @property
    def _closed_loops(self) -> list[Level]:
        return [one for one in self.levels if one.sweep is Sweep.CONCURRENCY]

    def prepare(self) -> None:
        """Make the folder of the plots. Raises InvalidArgument where that cannot be, or matplotlib is missing."""
        if self.plots is not None:
            check_can_draw("plots")
            make_folder("plots", self.plots)
