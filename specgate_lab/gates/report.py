"""A comparison of gates as a table, and as a picture."""

from collections.abc import Sequence
from pathlib import Path

from specgate_lab.gate_choice import ALONE, AUTO
from specgate_lab.gates.measure import CaseResult
from specgate_lab.report import new_figure, save_figure
from specgate_lab.statistics import Ratio

_HEAD = (
    "| draft | temperature | at a time | target alone | best fixed | which | auto | auto / best | auto / alone |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_COLUMNS = 3
_COLOURS = {AUTO: "tab:green", ALONE: "tab:gray"}


def markdown(results: Sequence[CaseResult]) -> str:
    """Return a row for each case: tokens per second, and ratios with the bounds of their 95 % intervals."""
    return "\n".join([_HEAD, *map(_row, results)]) + "\n"


def _row(result: CaseResult) -> str:
    case, rates, best = result.case, result.rates, result.best_fixed
    figures = (
        f"{rates[ALONE]:.0f} | {rates[best]:.0f} | {best} | {rates[AUTO]:.0f} "
        f"| {_shown(result.auto_to(best))} | {_shown(result.auto_to(ALONE))}"
    )
    return f"| {case.draft} | {case.temperature:g} | {case.concurrency} | {figures} |"


def _shown(ratio: Ratio) -> str:
    interval = f" ({ratio.interval.low:.3f} to {ratio.interval.high:.3f})" if ratio.interval else ""
    return f"{ratio.value:.3f}{interval}"


def draw(path: Path, results: Sequence[CaseResult]) -> None:
    """Draw the rates of every choice, a panel for each case. Raises as ``save_figure`` does."""
    num_rows = -(-len(results) // _COLUMNS)
    figure = new_figure(5.0 * _COLUMNS, 3.2 * num_rows)
    for number, result in enumerate(results, start=1):
        axes, rates = figure.add_subplot(num_rows, _COLUMNS, number), result.rates
        axes.set_title(str(result.case), fontsize=9)
        axes.bar(list(rates), list(rates.values()), color=[_COLOURS.get(name, "tab:blue") for name in rates])
        axes.axhline(rates[AUTO], color=_COLOURS[AUTO], linewidth=0.8)
        axes.set_ylabel("tokens per second")
        axes.tick_params(axis="x", rotation=90, labelsize=7)
    save_figure(figure, path, "out")
