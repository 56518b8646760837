"""Gates on traces, as a table."""

from orchestrator.bench.replay.compare import compare, fixed_gates
from orchestrator.bench.replay.trace import RoundTrace

HEAD = (
    "| trace | sessions | target alone | best fixed | which | auto | auto / best | from a cold start |\n"
    "|---|---|---|---|---|---|---|---|"
)
_ROW = "| {name} | {sessions} | {alone:.0f} | {best:.0f} | {best_name} | {auto:.0f} | {ratio:.3f} | {cold:.3f} |"


def row(name: str, trace: RoundTrace, sessions: int) -> str:
    """Return how every fixed choice and ``auto`` fare on a trace with so many sessions at a time."""
    warm, cold = compare(trace, sessions, fixed_gates())
    return _ROW.format(name=name, sessions=sessions, **warm._asdict(), ratio=warm.ratio, cold=cold.ratio)
