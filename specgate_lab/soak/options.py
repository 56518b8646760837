"""The flags of ``bench`` that soak a served system."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.terminal.results import results_path
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.report import can_draw

MIN_MINUTES = 0.1
MAX_MINUTES = 7 * 24 * 60.0
_PANEL = "Soak"


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How long, and where the figures go.

    Raises:
        InvalidArgument: the time is outside its range.
    """

    soak: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Serve the pair on Ray under mixed load with kills; check texts, memory and sessions over time.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of soak.json and soak.png.",
            show_default="one of its own",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.soak is not None:
            check_range("soak", self.soak, MIN_MINUTES, MAX_MINUTES)
        elif self.out is not None:
            raise InvalidArgument("out", "is for --soak, which is not given")

    @property
    def is_wanted(self) -> bool:
        return self.soak is not None

    def folder(self) -> Path:
        """Make the folder and return it. Raises InvalidArgument where it cannot be made, or nothing can be drawn."""
        usual = results_path("soak")
        folder = self.out or (usual.with_suffix("") if usual else None)
        if folder is None:
            raise InvalidArgument("out", "is needed here: there is no folder for results")
        if not can_draw():
            raise InvalidArgument("soak", "needs matplotlib: pip install 'specgate[bench]'")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument("out", f"{folder} cannot be made: {error.strerror}") from error
        return folder
