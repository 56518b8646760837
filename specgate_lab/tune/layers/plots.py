"""A search as a picture: every set that was tried, how the best one grew, and the harm of each block."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from specgate_lab.report import new_figure, save_figure
from specgate_lab.tune.layers.predict import Judged
from specgate_lab.tune.layers.report import SearchReport

_KINDS = {"attention": "tab:blue", "mlp": "tab:orange", "layer": "tab:blue"}


def draw_search(path: Path, report: SearchReport) -> None:
    """Write the picture.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    figure = new_figure(13.0, 7.5)
    grid = figure.add_gridspec(2, 2)
    _draw_sets(figure, figure.add_subplot(grid[0, 0]), report)
    _draw_progress(figure.add_subplot(grid[0, 1]), report)
    _draw_harm(figure.add_subplot(grid[1, :]), report)
    save_figure(figure, path, "out")


def _draw_sets(figure: Any, axes: Any, report: SearchReport) -> None:
    def scatter(sets: Sequence[Judged], **style: Any) -> Any:
        counts = [report.blocks.count(one.skip) for one in sets]
        return axes.scatter(counts, [one.prediction.agreement for one in sets], **style)

    ratios = [one.ratio for one in report.tried]
    shown = scatter(report.tried, c=ratios, cmap="viridis", label="tried")
    scatter(report.random, marker="x", color="tab:red", label="at random")
    scatter([report.best.judged], s=160, facecolors="none", edgecolors="k", label="best")
    axes.set(xlabel=f"blocks left out, of {len(report.blocks.names)}", ylabel="choice is the target's", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.colorbar(shown, ax=axes, label="predicted × the target alone")


def _draw_progress(axes: Any, report: SearchReport) -> None:
    ratios = [one.ratio for one in report.tried]
    axes.plot(range(1, len(ratios) + 1), ratios, ".", color="tab:gray", label="each set")
    axes.plot(range(1, len(ratios) + 1), list(accumulate(ratios, max)), color="tab:green", label="best so far")
    axes.axhline(report.best.best.ratio, color="tab:green", linestyle=":", label="best, when it was run")
    axes.axhline(1.0, color="k", linewidth=0.8, label="the target alone")
    axes.set(xlabel="sets tried", ylabel="× the target alone")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_harm(axes: Any, report: SearchReport) -> None:
    best = report.best.judged.skip
    for kind, colour in _KINDS.items():
        layers = {int(name.split()[1]): lost for name, lost in report.harm.items() if name.startswith(kind)}
        if not layers:
            continue
        left_out = best.mlp if kind == "mlp" else best.attention
        width, shift = (0.4, 0.2 if kind == "mlp" else -0.2) if kind != "layer" else (0.8, 0.0)
        bars = axes.bar([layer + shift for layer in layers], list(layers.values()), width, color=colour, label=kind)
        for layer, bar in zip(layers, bars, strict=True):
            if layer in left_out:
                bar.set(hatch="///", edgecolor="k")
    axes.set(xlabel="layer; hatched: left out by the best set", ylabel="agreement lost without it alone")
    axes.legend(fontsize=8)
