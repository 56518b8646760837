"""What ``tune`` tries, for how long, and where it writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specgate.types import DraftMethod, check_range
from specgate_lab.options import names_of
from specgate_lab.tune.layers.options import prepare_folder


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The size of the comparison.

    Raises:
        InvalidArgument: a value is outside its range, or there is no such source; names the flag.
    """

    sources: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD,...",
            help=f"Draft sources to try: some of {', '.join(DraftMethod)}.",
            show_default="all that there can be",
        ),
    ] = None
    source_skip: Annotated[
        str | None, typer.Option(metavar="FILE", help="Skip file for the source layer-skip, written by tune layers.")
    ] = None
    repeats: Annotated[int, typer.Option(help="Runs of each finalist, within --budget-s.")] = 5
    budget_s: Annotated[
        float, typer.Option(metavar="S", help="No finalist starts another run after so many seconds.")
    ] = 180.0
    allow_mode: Annotated[
        bool,
        typer.Option(
            "--allow-mode", help="Let the configuration change the verification mode, and so what a seed gives."
        ),
    ] = False
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of advice.json, advice.png and serve.yaml.")] = (
        Path("tune")
    )

    def __post_init__(self) -> None:
        check_range("repeats", self.repeats, 1, 1000)
        check_range("budget_s", self.budget_s, 1.0, 1e6)
        _ = self.methods

    @property
    def methods(self) -> tuple[DraftMethod, ...]:
        """The sources that were asked for; none where all are tried."""
        return tuple(map(DraftMethod, names_of("sources", self.sources, DraftMethod)))

    def prepare(self) -> None:
        """Make the folder. Raises InvalidArgument where that cannot be."""
        prepare_folder("out", self.out)
