"""The comparison as a table and as a picture."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from orchestrator.terminal.tables import number
from specgate_lab.report import new_figure, save_figure
from specgate_lab.tune.advice import Advice


def print_choices(console: Console, advice: Advice) -> None:
    """Print every way to draft, the fastest first; finalists with their gain in the final round."""
    found = {one.choice: one.gain for one in advice.tried} | dict(advice.finals)
    table = Table(box=None, header_style="bold")
    for name in ("way to draft", "tokens/s", "× target", "95 %", "accepted"):
        table.add_column(name, justify="left" if name == "way to draft" else "right")
    for choice, gain in sorted(found.items(), key=lambda item: -item[1].ratio):
        style = "bold green" if choice == advice.choice else "" if choice in advice.finals else "dim"
        interval = f"{gain.interval.low:.2f}..{gain.interval.high:.2f}" if gain.interval else "–"
        rates = f"{gain.tokens_per_s:.1f}", f"{gain.ratio:.2f}"
        table.add_row(str(choice), *rates, interval, number(gain.acceptance, ".0%"), style=style)
    console.print(table)
    console.print("dim: tried for a short time alone", style="dim")


def draw_advice(path: Path, advice: Advice) -> None:
    """Draw the gain of every way to draft over the target alone. Raises as ``save_figure`` does."""
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
