"""The benchmark's table, and the same numbers as bars, because people would rather look than read."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.commands.bench_rows import SPEC, SPEC_GATE, TARGET, Agreement, Row

_BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {SPEC: "green", SPEC_GATE: "green", TARGET: "cyan"}
_COLUMNS = (
    "tokens/s",
    "min..max",
    "× hf",
    "× target",
    "accepted",
    "tokens/forward",
    "solo",
    "draft µs",
    "verify µs",
    "rest µs",
)


def print_rows(console: Console, rows: Sequence[Row], agreement: Agreement | None) -> None:
    """Print the table, the bars, and how many texts were equal."""
    console.print(_table(rows))
    console.print(_bars(rows))
    if agreement:
        console.print(_verdict(rows, agreement))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="decode rate, first token left out; times are medians of a round")
    table.add_column("row", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, *_cells(row), style=_STYLES.get(row.name))
    return table


def _cells(row: Row) -> list[str]:
    times = row.round_us
    return [
        f"{row.tokens_per_s:.1f}",
        f"{row.tokens_per_s_min:.0f}..{row.tokens_per_s_max:.0f}",
        _format(row.ratio_to_hf, ".2f"),
        _format(row.ratio_to_target, ".2f"),
        _format(row.acceptance_rate, ".0%"),
        _format(row.tokens_per_forward, ".2f"),
        _format(row.solo_share, ".0%"),
        _format(times.draft, ".0f"),
        _format(times.verify, ".0f"),
        _format(times.rest, ".0f"),
    ]


def _format(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def _bars(rows: Sequence[Row]) -> Table:
    fastest = max((row.tokens_per_s for row in rows), default=0.0)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        bar = Text(_bar(row.tokens_per_s / fastest if fastest else 0.0), _STYLES.get(row.name, "blue"))
        table.add_row(row.name, bar, f"{row.tokens_per_s:.1f} tokens/s")
    return table


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * _BAR_CELLS * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths] if eighths else "")


def _verdict(rows: Sequence[Row], agreement: Agreement) -> Text:
    near_ties = sum(row.near_ties or 0 for row in rows if row.name in agreement.names)
    told = f"the same text from {', '.join(agreement.names)}: {agreement.equal} of {agreement.total} prompts"
    return Text(f"{told}; near ties {near_ties}", "bold green" if agreement.holds else "bold red")
