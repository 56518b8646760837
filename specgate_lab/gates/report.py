"""The table of a comparison, for people."""

from collections.abc import Sequence

from specgate_lab.gates.cases import AUTO
from specgate_lab.gates.measure import CaseResult
from specgate_lab.replay.compare import ALONE

_HEAD = (
    "| draft | temperature | at a time | target alone | best fixed | which | auto | auto / best | auto / alone |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def markdown(outcomes: Sequence[CaseResult]) -> str:
    """Return a row a case: tokens per second, and ratios with the bounds of their 95 % intervals."""
    return "\n".join([_HEAD, *map(_row, outcomes)]) + "\n"


def _row(outcome: CaseResult) -> str:
    case, rates, best = outcome.case, outcome.rates, outcome.best_fixed
    figures = (
        f"{rates[ALONE]:.0f} | {rates[best]:.0f} | {best} | {rates[AUTO]:.0f} "
        f"| {outcome.auto_to(best)} | {outcome.auto_to(ALONE)}"
    )
    return f"| {case.draft} | {case.temperature:g} | {case.concurrency} | {figures} |"
