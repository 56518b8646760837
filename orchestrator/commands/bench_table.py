"""The benchmark's table, and the same numbers as bars, because people would rather look than read."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.commands.bench_rows import SPEC, SPEC_GATE, TARGET, Agreement, Row
from orchestrator.commands.tables import WIDE, number, table_of

_BAR_CELLS = 40
_AHEAD_CELLS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {SPEC: "green", SPEC_GATE: "green", TARGET: "cyan"}

Column = tuple[str, Callable[[Row], str]]
_NAME: Column = ("row", lambda row: row.name)
_RATES: tuple[Column, ...] = (
    ("tokens/s", lambda row: f"{row.tokens_per_s:.1f}"),
    ("min..max", lambda row: f"{row.tokens_per_s_min:.0f}..{row.tokens_per_s_max:.0f}"),
    ("× hf", lambda row: number(row.ratio_to_hf, ".2f")),
    ("× target", lambda row: number(row.ratio_to_target, ".2f")),
)
_ROUNDS: tuple[Column, ...] = (
    ("accepted", lambda row: number(row.acceptance_rate, ".0%")),
    ("tok/forward", lambda row: number(row.tokens_per_forward, ".2f")),
    ("solo", lambda row: number(row.solo_share, ".0%")),
    ("ahead", lambda row: number(row.run_ahead_hit_rate, ".0%")),
    ("draft µs", lambda row: number(row.round_us.draft, ".0f")),
    ("verify µs", lambda row: number(row.round_us.verify, ".0f")),
    ("rest µs", lambda row: number(row.round_us.rest, ".0f")),
)


def print_rows(console: Console, rows: Sequence[Row], agreement: Agreement | None) -> None:
    """Print the table, in two halves where the terminal is narrow, the bars, and how many texts were equal."""
    for columns in [(*_RATES, *_ROUNDS)] if console.width >= WIDE + _AHEAD_CELLS else [_RATES, _ROUNDS]:
        console.print(table_of(rows, (_NAME, *columns), style_of=lambda row: _STYLES.get(row.name)))
    console.print(_bars(rows))
    console.print("Decode rates leave the first token out; times are medians of a round.", style="dim")
    if agreement:
        console.print(_verdict(rows, agreement), soft_wrap=True)


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
