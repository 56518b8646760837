"""Pictures of measurements, as PNG files. Needs matplotlib, which is an extra."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specgate.errors import InvalidArgument

DPI = 110


class PlotLine(NamedTuple):
    """Points (x, y) with what the legend calls them; ``style`` is matplotlib's, without a colour it picks one."""

    label: str
    points: Sequence[tuple[float, float]]
    style: str = "-"
    colour: str | None = None


def draw_lines(path: Path, x_label: str, y_label: str, lines: Sequence[PlotLine]) -> Path:
    """Draw lines with a marker at each point, from y = 0 up; return ``path``.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    figure, axes = _figure()
    for line in lines:
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        axes.plot(xs, ys, line.style, marker="o", label=line.label, color=line.colour)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axes.set_xticks(sorted({x for line in lines for x, _ in line.points}))
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, path, "plots")


class Bar(NamedTuple):
    """A value, and how far it was found to reach down and up."""

    label: str
    value: float
    low: float
    high: float


def draw_bars(path: Path, x_label: str, bars: Sequence[Bar]) -> Path:
    """Draw horizontal bars with their spread, the first one at the top. Raises as ``draw_lines`` does."""
    figure, axes = _figure()
    labels, values = [bar.label for bar in bars], [bar.value for bar in bars]
    spread = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
    axes.barh(labels, values, xerr=spread, color="tab:green", ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel=x_label, xlim=(0, None))
    axes.grid(axis="x", alpha=0.3)
    return save_figure(figure, path, "plots")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches."""
    # No pyplot: it keeps figures for the whole process, and looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, field: str) -> Path:
    """Write a figure, and return its path.

    Raises:
        InvalidArgument: the file cannot be written; names ``field``.
    """
    try:
        figure.savefig(path, format="png", dpi=DPI)
    except OSError as error:
        raise InvalidArgument(field, f"{path} cannot be written: {error.strerror}") from error
    return path


def _figure() -> tuple[Any, Any]:
    figure = new_figure(6.4, 4.0)
    return figure, figure.subplots()
