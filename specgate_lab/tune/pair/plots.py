"""The comparison as a picture: what every way to draft brought over the target alone."""

from pathlib import Path

from specgate_lab.report import new_figure, save_figure
from specgate_lab.tune.pair.advice import Advice


def draw_advice(path: Path, advice: Advice) -> None:
    """Write the picture.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    tried = sorted(advice.tried, key=lambda one: one.gain.ratio)
    names = [str(one.choice) for one in tried]
    figure = new_figure(11.0, 1.5 + 0.32 * len(tried))
    axes = figure.subplots()
    axes.barh(names, [one.gain.ratio for one in tried], color="lightsteelblue", label="tried for a short time")
    for choice, found in advice.finals.items():
        colour = "tab:green" if choice == advice.choice else "tab:blue"
        low, high = found.interval or (found.ratio, found.ratio)
        axes.plot([low, high], [str(choice)] * 2, color=colour, linewidth=2)
        axes.plot([found.ratio], [str(choice)], "o", color=colour)
    axes.axvline(1.0, color="k", linewidth=0.8)
    axes.set(xlabel="× the target alone; dots and lines: finalists and their 95 % intervals, green is the advice")
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path, "out")
