"""The flags of ``bench`` that put draft sources side by side."""

from dataclasses import dataclass
from typing import Annotated

import typer

from specgate.errors import InvalidArgument
from specgate.types import DraftMethod
from specgate_lab.sources.prompt_sets import SETS

_PANEL = "Draft sources"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which sources are measured, on which prompts.

    Raises:
        InvalidArgument: there is no such source or prompt set; names it.
    """

    sources: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD,...",
            help=f"Measure draft sources under the gate auto: some of {', '.join(DraftMethod)}.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    source_skip: Annotated[
        str | None, typer.Option(metavar="FILE", help="Skip file for the source layer-skip.", rich_help_panel=_PANEL)
    ] = None
    sets: Annotated[str, typer.Option(metavar="SET,...", help="Prompt sets for --sources.", rich_help_panel=_PANEL)] = (
        ",".join(SETS)
    )

    def __post_init__(self) -> None:
        if self.source_skip is None and DraftMethod.LAYER_SKIP in self.methods:
            raise InvalidArgument("source_skip", "is needed for the source layer-skip")
        known_names("sets", self.prompt_sets, SETS)

    @property
    def is_wanted(self) -> bool:
        return self.sources is not None

    @property
    def methods(self) -> tuple[DraftMethod, ...]:
        """The sources, as they were given."""
        names = tuple(self.sources.split(",")) if self.sources else ()
        known_names("sources", names, tuple(DraftMethod))
        return tuple(map(DraftMethod, names))

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """The prompt sets, as they were given."""
        return tuple(self.sets.split(","))


def known_names(flag: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise InvalidArgument(flag, f"{name!r} is not one of {', '.join(known)}")
