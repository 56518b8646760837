"""How long the search is, and where it is kept: the flags of ``tune layers``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.tune.layers.blocks import Blocks

MAX_TRIALS = 100_000
MIN_LAYERS = 2


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """The size of a search.

    Raises:
        InvalidArgument: a value is outside its range; names the flag.
    """

    trials: Annotated[int, typer.Option(metavar="N", help="Sets of blocks to try in the search.")] = 60
    finalists: Annotated[int, typer.Option(metavar="N", help="Best sets to run for real.")] = 2
    random_sets: Annotated[int, typer.Option(metavar="N", help="Random sets of the same size, for comparison.")] = 8
    repeats: Annotated[int, typer.Option(help="Runs of each finalist.")] = 3
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of skip.json, result.json and search.png.")] = (
        Path("tune-layers")
    )
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="SQLite file of the search; the same command resumes it.",
            show_default="study.db in --out",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_range("trials", self.trials, 1, MAX_TRIALS)
        check_range("finalists", self.finalists, 1, 16)
        check_range("random_sets", self.random_sets, 1, 1000)
        check_range("repeats", self.repeats, 1, 1000)

    @property
    def study_file(self) -> Path:
        return self.study or self.out / "study.db"

    def prepare(self) -> None:
        """Make the folders. Raises InvalidArgument where that cannot be."""
        prepare_folder("out", self.out)
        if self.study is not None and not self.study.parent.is_dir():
            raise InvalidArgument("study", f"there is no folder {str(self.study.parent)!r}")


def prepare_folder(flag: str, folder: Path) -> None:
    """Make a folder to write to. Raises InvalidArgument, with the flag's name, where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(flag, f"{folder} cannot be written: {error.strerror}") from error


def check_models(models: ModelOptions) -> None:
    """Raise InvalidArgument where services or sources are named that this command starts by itself."""
    if models.verifier or models.drafter:
        raise InvalidArgument("verifier" if models.verifier else "drafter", "is started here; give --target alone")
    for flag, given in (("draft", models.draft), ("method", models.service.given.get("method"))):
        if given is not None:
            raise InvalidArgument(flag, f"{str(given)!r} is not for a search of the target's own blocks")


def check_blocks(blocks: Blocks) -> None:
    """Raise InvalidArgument for a model that has too little to leave anything out of."""
    if blocks.num_layers < MIN_LAYERS:
        raise InvalidArgument("target", f"has {blocks.num_layers} layer; {MIN_LAYERS} are needed to leave one out")
