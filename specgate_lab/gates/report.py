"""A comparison of gates as a table, and as pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.policy.auto.history import BUCKET_EDGES
from specgate_lab.gates.cases import AUTO
from specgate_lab.gates.measure import CaseResult
from specgate_lab.replay.compare import ALONE
from specgate_lab.report import new_figure, save_figure
from specgate_lab.statistics import Ratio

_HEAD = (
    "| draft | temperature | at a time | target alone | best fixed | which | auto | auto / best | auto / alone |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
POSITIONS = (1, 2, 4)
MIN_JUDGED = 20
"""Draft tokens that a share is drawn of."""
_COLUMNS = 3
_CONFIDENCES = [(low + high) / 2 for low, high in zip((0, *BUCKET_EDGES), (*BUCKET_EDGES, 1), strict=True)]
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


def draw(folder: Path, results: Sequence[CaseResult]) -> None:
    """Write ``rates.png`` and ``acceptance.png``. Raises as ``save_figure`` does."""
    _draw(folder / "rates.png", results, _draw_rates)
    _draw(folder / "acceptance.png", results, _draw_acceptance)


def _draw(path: Path, results: Sequence[CaseResult], draw_one: Callable[[Any, CaseResult], None]) -> None:
    num_rows = -(-len(results) // _COLUMNS)
    figure = new_figure(5.0 * _COLUMNS, 3.2 * num_rows)
    for number, result in enumerate(results, start=1):
        axes = figure.add_subplot(num_rows, _COLUMNS, number)
        axes.set_title(str(result.case), fontsize=9)
        draw_one(axes, result)
    save_figure(figure, path, "out")


def _draw_rates(axes: Any, result: CaseResult) -> None:
    rates = result.rates
    axes.bar(list(rates), list(rates.values()), color=[_COLOURS.get(name, "tab:blue") for name in rates])
    axes.axhline(rates[AUTO], color=_COLOURS[AUTO], linewidth=0.8)
    axes.set_ylabel("tokens per second")
    axes.tick_params(axis="x", rotation=90, labelsize=7)


def _draw_acceptance(axes: Any, result: CaseResult) -> None:
    survival = result.survival
    for position in POSITIONS:
        points = [
            (at, accepted[position - 1] / judged[position - 1])
            for at, judged, accepted in zip(_CONFIDENCES, survival.judged, survival.accepted, strict=True)
            if judged[position - 1] >= MIN_JUDGED
        ]
        axes.plot([at for at, _ in points], [share for _, share in points], marker="o", label=f"token {position}")
    axes.set(xlabel="the target's confidence before the draft", ylabel="accepted, if those before are", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
