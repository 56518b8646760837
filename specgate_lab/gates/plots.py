"""A comparison of gates as pictures: rates of every choice, and how often drafts stand at which confidence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.policy.auto.history import BUCKET_EDGES
from specgate_lab.gates.cases import AUTO
from specgate_lab.gates.measure import CaseResult
from specgate_lab.replay.compare import ALONE
from specgate_lab.report import new_figure, save_figure

POSITIONS = (1, 2, 4)
MIN_JUDGED = 20
"""Draft tokens that a share is drawn of."""
_COLUMNS = 3
_CONFIDENCES = [(low + high) / 2 for low, high in zip((0, *BUCKET_EDGES), (*BUCKET_EDGES, 1), strict=True)]
_COLOURS = {AUTO: "tab:green", ALONE: "tab:gray"}


def draw(folder: Path, outcomes: Sequence[CaseResult]) -> list[Path]:
    """Write ``rates.png`` and ``acceptance.png``; return their paths.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    return [
        _draw(folder / "rates.png", outcomes, _draw_rates),
        _draw(folder / "acceptance.png", outcomes, _draw_acceptance),
    ]


def _draw(path: Path, outcomes: Sequence[CaseResult], draw_one: Any) -> Path:
    num_rows = -(-len(outcomes) // _COLUMNS)
    figure = new_figure(5.0 * _COLUMNS, 3.2 * num_rows)
    grid = figure.subplots(num_rows, _COLUMNS, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index < len(outcomes):
            axes.set_title(str(outcomes[index].case), fontsize=9)
            draw_one(axes, outcomes[index])
        else:
            axes.set_axis_off()
    return save_figure(figure, path, "out")


def _draw_rates(axes: Any, outcome: CaseResult) -> None:
    rates = outcome.rates
    axes.bar(list(rates), list(rates.values()), color=[_COLOURS.get(name, "tab:blue") for name in rates])
    axes.axhline(rates[AUTO], color=_COLOURS[AUTO], linewidth=0.8)
    axes.set_ylabel("tokens per second")
    axes.tick_params(axis="x", rotation=90, labelsize=7)


def _draw_acceptance(axes: Any, outcome: CaseResult) -> None:
    tally = outcome.tally
    for position in POSITIONS:
        points = [
            (at, accepted[position - 1] / judged[position - 1])
            for at, judged, accepted in zip(_CONFIDENCES, tally.judged, tally.accepted, strict=True)
            if judged[position - 1] >= MIN_JUDGED
        ]
        axes.plot([at for at, _ in points], [share for _, share in points], marker="o", label=f"token {position}")
    axes.set(xlabel="the target's confidence before the draft", ylabel="stands, if those before do", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
