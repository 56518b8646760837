"""The load tables as pictures: rates and latencies over the level of load, speculation off and on."""

from collections.abc import Callable, Sequence
from pathlib import Path

from specgate_lab.bench.load.levels import Speculation, Sweep
from specgate_lab.bench.load.rows import LoadRow
from specgate_lab.report import PlotLine, draw_lines
from specgate_lab.statistics import Percentiles

Measure = tuple[str, str, Callable[[LoadRow], float | None]]
"""The end of its label, how it is drawn, and its value in a row."""

_COLOURS = {Speculation.OFF: "tab:blue", Speculation.ON: "tab:green"}
_AXES = {Sweep.CONCURRENCY: "clients", Sweep.RATE: "requests per second"}


def _latency(of: Callable[[LoadRow], Percentiles | None]) -> tuple[Measure, ...]:
    def ms(row: LoadRow, name: str) -> float | None:
        times = of(row)
        return times.to_object()[name] if times else None

    return (" p50", "-", lambda row: ms(row, "p50")), (" p99", "--", lambda row: ms(row, "p99"))


_PLOTS: dict[str, tuple[str, tuple[Measure, ...]]] = {
    "throughput": ("tokens per second, all requests", (("", "-", lambda row: row.rate.median),)),
    "per_request": ("tokens per second, one request", (("", "-", lambda row: row.request_tokens_per_s),)),
    "ttft": ("time to first token, ms", _latency(lambda row: row.ttft_s)),
    "tpot": ("time per output token, ms", _latency(lambda row: row.tpot_s)),
    "itl": ("gap between deltas, ms", _latency(lambda row: row.itl_s)),
    "e2e": ("end to end, ms", _latency(lambda row: row.e2e_s)),
    "batch_width": ("sessions in a forward of the target", (("", "-", lambda row: row.batch_width),)),
}


def draw(folder: Path, rows: Sequence[LoadRow]) -> list[Path]:
    """Write one PNG a sweep and measure, ``concurrency_ttft.png`` and the like; return their paths.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    return [
        _draw(folder / f"{sweep}_{name}.png", sweep, title, measures, own)
        for sweep in Sweep
        if (own := [row for row in rows if row.level.sweep is sweep])
        for name, (title, measures) in _PLOTS.items()
    ]


def _draw(path: Path, sweep: Sweep, title: str, measures: Sequence[Measure], rows: Sequence[LoadRow]) -> Path:
    lines = []
    for mode in Speculation:
        own = sorted((row for row in rows if row.mode is mode), key=lambda row: row.level.value)
        for ending, style, value in measures:
            points = [(row.level.value, y) for row in own if (y := value(row)) is not None]
            lines.append(PlotLine(f"speculation {mode}{ending}", points, style, _COLOURS[mode]))
    return draw_lines(path, _AXES[sweep], title, lines)
