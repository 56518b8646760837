"""The benchmark's table as a picture."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.terminal.figures import Bar, draw_bars
from specgate_lab.throughput.rows import Row
from specgate_lab.throughput.samples import DRAFT


def draw_rows(folder: Path, rows: Sequence[Row]) -> Path:
    """Write ``rows.png``: the decode rate of every row that writes the target's text. Raises as ``draw_bars`` does."""
    bars = [Bar(row.name, row.rate.median, row.rate.min, row.rate.max) for row in rows if row.name != DRAFT]
    return draw_bars(folder / "rows.png", "tokens per second", bars)
