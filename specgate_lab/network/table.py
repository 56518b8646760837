"""The network table, and its pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from orchestrator.terminal.figures import PlotLine, draw_lines
from orchestrator.terminal.tables import number, print_lost, table_of
from specgate_lab.network.rows import NetworkRow
from specgate_lab.throughput.agreement import TextAgreement
from specgate_lab.throughput.table import STYLES, agreement_line, interval

Column = tuple[str, Callable[[NetworkRow], str]]
_COLUMNS: tuple[Column, ...] = (
    ("added ms", lambda one: f"{one.added_ms:g}"),
    ("row", lambda one: one.row.name),
    ("tokens/s", lambda one: f"{one.row.rate.median:.1f}"),
    ("min..max", lambda one: f"{one.row.rate.min:.0f}..{one.row.rate.max:.0f}"),
    ("× target", lambda one: number(one.row.ratio_to_target, ".2f")),
    ("95 %", lambda one: interval(one.row.interval_to_target)),
    ("× nearest", lambda one: f"{one.ratio_to_nearest:.2f}"),
    ("overhead µs", lambda one: number(one.row.round_us.overhead, ".0f")),
)
_LEGEND = (
    "× target is to the target alone at the same delay, × nearest to the same row at the least one.\n"
    "All go through the delaying proxy, 0 ms too."
)


def print_network(console: Console, rows: Sequence[NetworkRow], agreement: TextAgreement | None) -> None:
    """Print the table, and how many texts were equal over all rows and delays."""
    console.print(table_of(rows, _COLUMNS, num_names=2, style_of=lambda one: STYLES.get(one.row.name)))
    console.print(_LEGEND, style="dim")
    print_lost(console, sum(one.row.num_survived for one in rows))
    if agreement:
        console.print(agreement_line([one.row for one in rows], agreement), soft_wrap=True)


def draw_network(folder: Path, rows: Sequence[NetworkRow]) -> list[Path]:
    """Write ``network_throughput.png`` and ``network_speedup.png``; return their paths.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    label = "added round trip, ms"
    rates = _lines(rows, lambda one: one.row.rate.median)
    ratios = _lines(rows, lambda one: one.row.ratio_to_target)
    return [
        draw_lines(folder / "network_throughput.png", label, "tokens per second", rates),
        draw_lines(folder / "network_speedup.png", label, "times the target alone", ratios),
    ]


def _lines(rows: Sequence[NetworkRow], value: Callable[[NetworkRow], float | None]) -> list[PlotLine]:
    names = dict.fromkeys(one.row.name for one in rows)
    return [
        PlotLine(name, [(one.added_ms, y) for one in rows if one.row.name == name and (y := value(one)) is not None])
        for name in names
    ]
