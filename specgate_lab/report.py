"""What a measurement leaves: a table, a JSON file with its provenance, and figures, which need matplotlib."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console

from specgate.errors import InvalidArgument
from specgate_lab.provenance import provenance, sealed

DPI = 110


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """A JSON file that says what measured its figures. Make it before the measurement: that is when it starts.

    ``flag`` is the flag that named it.
    """

    path: Path
    flag: str = "json"
    provenance: Mapping[str, Any] = field(default_factory=provenance)

    @classmethod
    def writable(cls, path: Path) -> Self:
        """Return the file that ``--json`` names; what is in it stays for now.

        Raises:
            InvalidArgument: it cannot be written, which is said before minutes of measuring.
        """
        try:
            path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise InvalidArgument("json", f"{path} cannot be written: {error.strerror}") from error
        return cls(path)

    def write(self, results: Mapping[str, Any]) -> None:
        """Write the results. Raises InvalidArgument, with the flag's name, where that cannot be."""
        write_json(self.path, sealed({"provenance": self.provenance, **results}), self.flag)


def results_path(command: str) -> Path | None:
    """Return the default file for the results of a command; None where its folder cannot be written to.

    The folder is ``specgate/results`` under ``XDG_STATE_HOME``, by default ``~/.local/state``.
    """
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(home) / "specgate" / "results"
        folder.mkdir(parents=True, exist_ok=True)
    # Somebody without an entry among the users has no home.
    except (OSError, RuntimeError):
        return None
    if not os.access(folder, os.W_OK):
        return None
    return folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}-{command}.json"


def write_json(path: Path, value: Any, flag: str = "json") -> None:
    """Write a value as JSON. Raises InvalidArgument as ``write_whole`` does."""
    write_whole(path, json.dumps(value, indent=2) + "\n", flag)


def write_whole(path: Path, text: str, flag: str) -> None:
    """Write a file under another name first, so that it is never half written.

    Raises:
        InvalidArgument: the file cannot be written; names ``flag``.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        # What is no file, such as a pipe, is written to as it is.
        if path.exists() and not path.is_file():
            path.write_text(text, "utf-8")
            return
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InvalidArgument(flag, f"{path} cannot be written: {error.strerror}") from error


def print_lost(console: Console, num_lost: int) -> None:
    """Say under a table that services failed during the measurement, if any did."""
    if num_lost:
        warning = f"Services were lost, or too slow to answer, {num_lost} times meanwhile: these are no rates."
        console.print(warning, style="red", soft_wrap=True)


def can_draw() -> bool:
    """Return whether matplotlib, an extra, is installed."""
    return find_spec("matplotlib") is not None


def check_can_draw(flag: str) -> None:
    """Raise InvalidArgument, with the flag's name, where matplotlib is missing."""
    if not can_draw():
        raise InvalidArgument(flag, "needs matplotlib: pip install 'specgate[bench]'")


class PlotLine(NamedTuple):
    """Points (x, y) and their name in the legend; ``style`` is matplotlib's, which picks a missing colour."""

    label: str
    points: Sequence[tuple[float, float]]
    style: str = "-"
    colour: str | None = None


def draw_lines(path: Path, x_label: str, y_label: str, lines: Sequence[PlotLine]) -> Path:
    """Draw lines with a marker at each point, from y = 0 up; return ``path``. Raises as ``save_figure`` does."""
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    for line in lines:
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        axes.plot(xs, ys, line.style, marker="o", label=line.label, color=line.colour)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axes.set_xticks(sorted({x for line in lines for x, _ in line.points}))
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, path, "plots")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches."""
    # No pyplot: it keeps figures for the whole process, and looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, flag: str) -> Path:
    """Write a figure as PNG, and return its path.

    Raises:
        InvalidArgument: the file cannot be written; names ``flag``.
    """
    try:
        figure.savefig(path, format="png", dpi=DPI)
    except OSError as error:
        raise InvalidArgument(flag, f"{path} cannot be written: {error.strerror}") from error
    return path
