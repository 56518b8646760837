"""The benchmark's table, and the same numbers as bars, because people would rather look than read."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.terminal.tables import number, table_of
from specgate_lab.bench.row_names import DRAFT, PAIR_ROWS, TARGET
from specgate_lab.bench.rows import Row, RowsReport, TextAgreement
from specgate_lab.report import new_figure, print_lost, save_figure
from specgate_lab.statistics import Interval

_BAR_CELLS = 40
_ONE_TABLE, _TWO_TABLES = 160, 95
"""Columns of a terminal that shows all of it in so many tables."""
STYLES = {**dict.fromkeys(PAIR_ROWS, "green"), TARGET: "cyan"}
"""By the name of the row."""

Column = tuple[str, Callable[[Row], str]]
_NAME: Column = ("row", lambda row: row.name)
_RATES: tuple[Column, ...] = (
    ("tokens/s", lambda row: f"{row.rate.median:.1f}"),
    ("min..max", lambda row: f"{row.rate.min:.0f}..{row.rate.max:.0f}"),
    ("× hf", lambda row: number(row.ratio_to_hf, ".2f")),
    ("× target", lambda row: number(row.ratio_to_target, ".2f")),
    ("95 %", lambda row: interval(row.ratio_to_target_95)),
)
_CEILING: tuple[Column, ...] = (
    ("ceiling", lambda row: number(row.ceiling_tokens_per_s, ".0f")),
    ("of it", lambda row: number(row.share_of_ceiling, ".0%")),
)
_SHARES: tuple[Column, ...] = (
    ("accepted", lambda row: number(row.acceptance_rate, ".0%")),
    ("tok/forward", lambda row: number(row.tokens_per_forward, ".2f")),
    ("solo", lambda row: number(row.solo_share, ".0%")),
    ("ahead", lambda row: number(row.run_ahead_hit_rate, ".0%")),
)
_TIMES: tuple[Column, ...] = (
    ("draft µs", lambda row: number(row.round_us.draft, ".0f")),
    ("verify µs", lambda row: number(row.round_us.verify, ".0f")),
    ("overhead µs", lambda row: number(row.round_us.overhead, ".0f")),
    ("bytes", lambda row: number(row.bytes_per_round, ".0f")),
)
_LEGEND = (
    "Decode rates are medians over repeats and leave the first tokens out; 95 % is the interval of × target.\n"
    "The ceiling is the row's own rounds with no time between the models; times and bytes are of a round."
)


def print_rows(console: Console, report: RowsReport) -> None:
    """Print the table, in parts where the terminal is narrow, the bars, and how many texts were equal."""
    rows = report.rows
    for columns in _tables(console.width):
        console.print(table_of(rows, (_NAME, *columns), style_of=lambda row: STYLES.get(row.name)))
    console.print(_bars(rows))
    console.print(_LEGEND, style="dim")
    for row in rows:
        if row.schedule:
            rates = ", ".join(f"{name} {rate.median:.1f}" for name, rate in row.schedules.items())
            console.print(f"{row.name}: {rates} tokens/s; the row is {row.schedule}", style="dim", markup=False)
        for line in _beside(row):
            console.print(f"{row.name}: {line}", style="dim", markup=False, soft_wrap=True)
    print_lost(console, sum(row.failures_survived for row in rows))
    if report.agreement:
        console.print(agreement_line(rows, report.agreement), soft_wrap=True)


def _beside(row: Row) -> Iterator[str]:
    """Yield what a row is compared with, and what is left to draft where it guessed right."""
    rivals = [f"{one.value:.2f} × {name} ({interval(one.interval)})" for name, one in row.ratios_to_rivals.items()]
    if rivals:
        yield ", ".join(rivals)
    if row.hit_draft_share is not None:
        yield f"after a hit drafting takes {row.hit_draft_share:.1%} of the round at the median"


def interval(found: Interval | None) -> str:
    """Return an interval in words, a dash where there is none."""
    return f"{found.low:.2f}..{found.high:.2f}" if found else "–"


def _tables(width: int) -> Sequence[tuple[Column, ...]]:
    if width >= _ONE_TABLE:
        return [(*_RATES, *_CEILING, *_SHARES, *_TIMES)]
    if width >= _TWO_TABLES:
        return [(*_RATES, *_CEILING), (*_SHARES, *_TIMES)]
    return [_RATES, (*_CEILING, *_SHARES), _TIMES]


def _bars(rows: Sequence[Row]) -> Table:
    fastest = max((row.rate.median for row in rows), default=0.0)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        bar = Bar(fastest, 0, row.rate.median, width=_BAR_CELLS, color=STYLES.get(row.name, "blue"))
        table.add_row(row.name, bar, f"{row.rate.median:.1f} tokens/s")
    return table


def agreement_line(rows: Sequence[Row], agreement: TextAgreement) -> Text:
    """Return for how many prompts the texts were equal, and how near it was."""
    near_ties = sum(row.near_ties or 0 for row in rows if row.name in agreement.names)
    line = f"the same text from {', '.join(agreement.names)}: {agreement.equal} of {agreement.total} prompts"
    return Text(f"{line}; near ties {near_ties}", "bold green" if agreement.holds else "bold red")


def draw_rows(folder: Path, rows: Sequence[Row]) -> Path:
    """Write ``rows.png``: the decode rate and its spread of every row that writes the target's text.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    drawn = [row for row in rows if row.name != DRAFT]
    rates = [row.rate for row in drawn]
    spread = [[rate.median - rate.min for rate in rates], [rate.max - rate.median for rate in rates]]
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    bars = [row.name for row in drawn], [rate.median for rate in rates]
    axes.barh(*bars, xerr=spread, color="tab:green", ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="tokens per second", xlim=(0, None))
    axes.grid(axis="x", alpha=0.3)
    return save_figure(figure, folder / "rows.png", "plots")
