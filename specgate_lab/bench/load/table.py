"""The tables of the load generator."""

from collections.abc import Callable, Sequence

from rich.console import Console

from orchestrator.terminal.tables import number, table_of
from specgate_lab.bench.load.levels import Speculation, Sweep
from specgate_lab.bench.load.neighbour import NeighbourRow
from specgate_lab.bench.load.rows import LoadRow
from specgate_lab.report import print_lost
from specgate_lab.statistics import Percentiles

Column = tuple[str, Callable[[LoadRow], str]]
_ONE_TABLE = 236
"""Columns of a terminal that shows rates and times in one table."""


def _ms(value_s: float | None) -> str:
    return number(None if value_s is None else value_s * 1e3, ".0f" if value_s and value_s >= 0.1 else ".1f")


def _p50_p99(times: Percentiles | None) -> str:
    return f"{_ms(times.p50)} / {_ms(times.p99)}" if times else "–"


_TITLES = {Sweep.CONCURRENCY: "clients", Sweep.RATE: "requests/s"}
_MODE: Column = ("speculation", lambda row: str(row.mode))
_RATES: tuple[Column, ...] = (
    ("tokens/s", lambda row: f"{row.rate.median:.1f}"),
    ("min..max", lambda row: f"{row.rate.min:.0f}..{row.rate.max:.0f}"),
    ("a request", lambda row: number(row.request_tokens_per_s, ".1f")),
    ("× off", lambda row: number(row.ratio_to_off, ".2f")),
    ("× one client", lambda row: number(row.ratio_to_one, ".2f")),
    ("accepted", lambda row: number(row.acceptance_rate, ".0%")),
    ("tok/forward", lambda row: number(row.tokens_per_forward, ".2f")),
    ("batch", lambda row: number(row.batch_width, ".2f")),
    ("failed", lambda row: f"{row.num_failed} of {row.num_requests}"),
)
_TIMES: tuple[Column, ...] = (
    ("TTFT p50 / p99 ms", lambda row: _p50_p99(row.ttft_s)),
    ("ITL p50 / p99 ms", lambda row: _p50_p99(row.itl_s)),
    ("TPOT p50 / p99 ms", lambda row: _p50_p99(row.tpot_s)),
    ("end to end p50 / p99 ms", lambda row: _p50_p99(row.e2e_s)),
)
_NEIGHBOURS: tuple[tuple[str, Callable[[NeighbourRow], str]], ...] = (
    ("speculation", lambda row: str(row.mode)),
    ("sessions", lambda row: str(row.num_sessions)),
    ("gap without ms", lambda row: _ms(row.quiet_s)),
    ("worst", lambda row: _ms(row.quiet_worst_s)),
    ("gap with ms", lambda row: _ms(row.beside_s)),
    ("worst", lambda row: _ms(row.beside_worst_s)),
    ("its TTFT ms", lambda row: _ms(row.newcomer_ttft_s)),
    ("still streaming", lambda row: str(row.num_still_streaming)),
)


def print_load(console: Console, rows: Sequence[LoadRow]) -> None:
    """Print two tables a sweep: rates, then times; in one where the terminal is wide enough for both."""
    for sweep in Sweep:
        own = [row for row in rows if row.level.sweep is sweep]
        if not own:
            continue
        names: tuple[Column, ...] = ((_TITLES[sweep], lambda row: f"{row.level.value:g}"), _MODE)
        for columns in [(*_RATES, *_TIMES)] if console.width >= _ONE_TABLE else [_RATES, _TIMES]:
            console.print(table_of(own, (*names, *columns), num_names=2, style_of=_style))
    note = "Total tokens/s are medians of the repeats; times are of all requests (docs/internals/benchmarks.md)."
    console.print(note, style="dim", soft_wrap=True)
    print_lost(console, sum(row.num_survived for row in rows))


def print_neighbours(console: Console, rows: Sequence[NeighbourRow]) -> None:
    """Print the longest gaps without and with the long prompt."""
    console.print(f"Longest gap between tokens when a prompt of {rows[0].prompt_tokens} tokens arrives:", style="bold")
    console.print(table_of(rows, _NEIGHBOURS, style_of=_style))
    if any(row.num_still_streaming == 0 for row in rows):
        told = "The sessions ended before the long prompt had its first token: give more --max-tokens."
        console.print(told, style="yellow", soft_wrap=True)
    print_lost(console, sum(row.num_survived for row in rows))


def _style(row: LoadRow | NeighbourRow) -> str | None:
    return "green" if row.mode is Speculation.ON else None
