"""What ``calibrate`` shows: a table by place in the proposal, and a picture of both confidences."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from orchestrator.terminal.tables import number, table_of
from specgate_lab.gates.calibration import GRID_EDGES, PairCalibration, Signals
from specgate_lab.report import new_figure, save_figure

_DRAFT, _TARGET = "draft's probability of it", "target's confidence in the token before"


class _Row(NamedTuple):
    temperature: float
    place: str
    signals: Signals


_COLUMNS: tuple[tuple[str, Callable[[_Row], str]], ...] = (
    ("temperature", lambda row: f"{row.temperature:g}"),
    ("draft token", lambda row: row.place),
    ("judged", lambda row: f"{row.signals.tokens}"),
    ("accepted", lambda row: f"{row.signals.accepted:.0%}"),
    ("draft: error", lambda row: f"{row.signals.draft.error:.3f}"),
    ("area", lambda row: number(row.signals.draft.area, ".3f")),
    ("target: error", lambda row: f"{row.signals.target.error:.3f}"),
    ("area", lambda row: number(row.signals.target.area, ".3f")),
)


def print_calibration(console: Console, found: Sequence[PairCalibration]) -> None:
    """Print, for each temperature, all draft tokens and those of each place in a proposal."""
    rows = [
        _Row(one.temperature, place, signals)
        for one in found
        for place, signals in {"all": one.all, **{str(at + 1): each for at, each in one.places.items()}}.items()
    ]
    console.print(table_of(rows, _COLUMNS, num_names=2))
    words = "error: expected calibration error, 0 is best; area: under the ROC curve, 1 is best, 0.5 says nothing"
    console.print(words, style="dim", highlight=False, soft_wrap=True)


def draw_calibration(path: Path, found: Sequence[PairCalibration]) -> Path:
    """Draw acceptance by each confidence and by both, a row for each temperature. Raises as ``save_figure`` does."""
    figure = new_figure(11.0, 4.2 * len(found))
    panels = figure.subplots(len(found), 2, squeeze=False)
    for one, (curves, cells) in zip(found, panels, strict=True):
        _draw_curves(curves, one)
        _draw_grid(cells, one)
    return save_figure(figure, path, "out")


def _draw_curves(axes: Any, found: PairCalibration) -> None:
    axes.plot([0, 1], [0, 1], color="k", linewidth=0.8, linestyle="--")
    for label, signal in ((_DRAFT, found.all.draft), (_TARGET, found.all.target)):
        points = [(one.confidence, one.accepted) for one in signal.bins]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{label}, error {signal.error:.3f}")
    axes.set(xlabel="confidence", ylabel="accepted", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"temperature {found.temperature:g}, {found.all.tokens} draft tokens", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_grid(axes: Any, found: PairCalibration) -> None:
    shares = [[float("nan") if cell.accepted is None else cell.accepted for cell in row] for row in found.grid]
    axes.imshow(shares, origin="lower", vmin=0, vmax=1, cmap="RdYlGn")
    for y, row in enumerate(found.grid):
        for x, cell in enumerate(row):
            if cell.accepted is not None:
                axes.text(x, y, f"{cell.accepted:.0%}\n{cell.tokens}", ha="center", va="center", fontsize=8)
    bounds = (0.0, *GRID_EDGES, 1.0)
    names = [f"{low:g} to {high:g}" for low, high in pairwise(bounds)]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel=_DRAFT, ylabel=_TARGET, title="accepted, and how many were judged")
