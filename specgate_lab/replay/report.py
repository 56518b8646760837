"""Gates on traces, as a table."""

from typing import NamedTuple

from specgate_lab.replay.compare import compare, fixed_gates
from specgate_lab.replay.trace import RoundTrace

HEAD = (
    "| trace | sessions | target alone | best fixed | which | auto | auto / best | from a cold start |\n"
    "|---|---|---|---|---|---|---|---|"
)


class ReplayRow(NamedTuple):
    """How ``auto`` and the best fixed choice do on one trace, in tokens per second of all sessions together."""

    trace: str
    sessions: int
    alone_tokens_per_s: float
    best_tokens_per_s: float
    best: str
    auto_tokens_per_s: float
    auto_to_best: float
    auto_to_best_cold: float

    def __str__(self) -> str:
        name, sessions, alone, best, best_name, auto, ratio, cold = self
        return (
            f"| {name} | {sessions} | {alone:.0f} | {best:.0f} | {best_name} | {auto:.0f} | {ratio:.3f} | {cold:.3f} |"
        )


def row(name: str, trace: RoundTrace, sessions: int) -> ReplayRow:
    """Return how every fixed choice and ``auto`` fare on a trace with so many sessions at a time."""
    warm, cold = compare(trace, sessions, fixed_gates())
    return ReplayRow(name, sessions, warm.alone, warm.best, warm.best_name, warm.auto, warm.ratio, cold.ratio)
