"""The comparison as a picture: what every way to draft brought over the target alone."""

from pathlib import Path

from orchestrator.tune.pair.advice import Advice
from specgate.errors import InvalidArgument


def draw_advice(path: Path, advice: Advice) -> None:
    """Write the picture.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    # No pyplot: it keeps figures for the whole process, and looks for a screen.
    from matplotlib.figure import Figure

    tried = sorted(advice.tried, key=lambda one: one.gain.ratio)
    names = [str(one.choice) for one in tried]
    figure = Figure(figsize=(11.0, 1.5 + 0.32 * len(tried)), layout="constrained")
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
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise InvalidArgument("out", f"{path} cannot be written: {error.strerror}") from error
