"""The tables of the load generator, and its pictures: rates and latencies over the level of load."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from orchestrator.terminal.tables import number, table_of
from specgate_lab.bench.load.levels import Speculation, Sweep
from specgate_lab.bench.load.neighbour import NeighbourRow
from specgate_lab.bench.load.rows import LoadRow
from specgate_lab.report import PlotLine, draw_lines, print_lost
from specgate_lab.statistics import Percentiles

Column = tuple[str, Callable[[LoadRow], str]]
_ONE_TABLE = 236
"""Columns of a terminal that shows rates and times in one table."""


def _ms(value: float) -> str:
    return format(value, ".0f" if value >= 100 else ".1f")


def _p50_p99(times: Percentiles | None) -> str:
    return f"{_ms(times.p50)} / {_ms(times.p99)}" if times else "–"


_TITLES = {Sweep.CONCURRENCY: "clients", Sweep.RATE: "requests/s"}
_MODE: Column = ("speculation", lambda row: str(row.speculation))
_RATES: tuple[Column, ...] = (
    ("tokens/s", lambda row: f"{row.rate.median:.1f}"),
    ("min..max", lambda row: f"{row.rate.min:.0f}..{row.rate.max:.0f}"),
    ("a request", lambda row: number(row.request_tokens_per_s, ".1f")),
    ("× off", lambda row: number(row.ratio_to_off, ".2f")),
    ("× one client", lambda row: number(row.ratio_to_concurrency_1, ".2f")),
    ("accepted", lambda row: number(row.acceptance_rate, ".0%")),
    ("tok/forward", lambda row: number(row.tokens_per_forward, ".2f")),
    ("batch", lambda row: number(row.batch_width, ".2f")),
    ("failed", lambda row: f"{row.failed} of {row.requests}"),
)
_TIMES: tuple[Column, ...] = (
    ("TTFT p50 / p99 ms", lambda row: _p50_p99(row.ttft_ms)),
    ("ITL p50 / p99 ms", lambda row: _p50_p99(row.itl_ms)),
    ("TPOT p50 / p99 ms", lambda row: _p50_p99(row.tpot_ms)),
    ("end to end p50 / p99 ms", lambda row: _p50_p99(row.e2e_ms)),
)
_NEIGHBOURS: tuple[tuple[str, Callable[[NeighbourRow], str]], ...] = (
    ("speculation", lambda row: str(row.speculation)),
    ("sessions", lambda row: str(row.sessions)),
    ("gap without ms", lambda row: _ms(row.longest_gap_without_ms)),
    ("worst", lambda row: _ms(row.longest_gap_without_worst_ms)),
    ("gap with ms", lambda row: _ms(row.longest_gap_with_ms)),
    ("worst", lambda row: _ms(row.longest_gap_with_worst_ms)),
    ("its TTFT ms", lambda row: _ms(row.long_prompt_ttft_ms)),
    ("still streaming", lambda row: str(row.still_streaming)),
)


Measure = Callable[[LoadRow], Percentiles | float | None]
_COLOURS = {Speculation.OFF: "tab:blue", Speculation.ON: "tab:green"}
_AXES = {Sweep.CONCURRENCY: "clients", Sweep.RATE: "requests per second"}
_PLOTS: dict[str, tuple[str, Measure]] = {
    "throughput": ("tokens per second, all requests", lambda row: row.rate.median),
    "per_request": ("tokens per second, one request", lambda row: row.request_tokens_per_s),
    "ttft": ("time to first token, ms", lambda row: row.ttft_ms),
    "tpot": ("time per output token, ms", lambda row: row.tpot_ms),
    "itl": ("gap between deltas, ms", lambda row: row.itl_ms),
    "e2e": ("end to end, ms", lambda row: row.e2e_ms),
    "batch_width": ("sessions in a forward of the target", lambda row: row.batch_width),
}


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
    print_lost(console, sum(row.failures_survived for row in rows))


def print_neighbours(console: Console, rows: Sequence[NeighbourRow]) -> None:
    """Print the longest gaps without and with the long prompt."""
    console.print(f"Longest gap between tokens when a prompt of {rows[0].prompt_tokens} tokens arrives:", style="bold")
    console.print(table_of(rows, _NEIGHBOURS, style_of=_style))
    if any(row.still_streaming == 0 for row in rows):
        warning = "The sessions ended before the long prompt had its first token: give more --max-tokens."
        console.print(warning, style="yellow", soft_wrap=True)
    print_lost(console, sum(row.failures_survived for row in rows))


def _style(row: LoadRow | NeighbourRow) -> str | None:
    return "green" if row.speculation is Speculation.ON else None


def draw(folder: Path, rows: Sequence[LoadRow]) -> list[Path]:
    """Write one PNG a sweep and measure, ``concurrency_ttft.png`` and the like; return their paths.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    paths = []
    for sweep in Sweep:
        own = sorted((row for row in rows if row.level.sweep is sweep), key=lambda row: row.level.value)
        for name, (title, value) in _PLOTS.items() if own else ():
            lines = [line for mode in Speculation for line in _lines(mode, own, value)]
            paths.append(draw_lines(folder / f"{sweep}_{name}.png", _AXES[sweep], title, lines))
    return paths


def _lines(mode: Speculation, rows: Sequence[LoadRow], value: Measure) -> Iterator[PlotLine]:
    """Yield the line of a number, or those of the median and the 99th percentile of times."""
    label, colour = f"speculation {mode}", _COLOURS[mode]
    found = [(row.level.value, value(row)) for row in rows if row.speculation is mode]
    if times := [(at, one) for at, one in found if isinstance(one, Percentiles)]:
        yield PlotLine(f"{label} p50", [(at, one.p50) for at, one in times], "-", colour)
        yield PlotLine(f"{label} p99", [(at, one.p99) for at, one in times], "--", colour)
    else:
        yield PlotLine(label, [(at, one) for at, one in found if isinstance(one, float)], "-", colour)
