"""The rows of the load tables. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from specgate_lab.bench.load.levels import Level, Speculation, Sweep
from specgate_lab.experiment import Sample, Samples
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.statistics import Percentiles, Rate, acceptance_rate, quotient, tokens_per_forward


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One level in one mode, with the names of the results file.

    ``rate`` is of all requests together, one a repeat; times are pooled over repeats. ``batch_width`` is the mean, over
    forwards of the target that decided something, of the sessions that shared one. Requests that broke off count in
    ``failed`` and in nothing else. ``failures_survived`` services were lost and replaced during requests, which the
    times of those requests show.
    """

    level: Level
    speculation: Speculation
    requests: int
    failed: int
    failures_survived: int
    mean_prompt_tokens: float
    rate: Rate
    request_tokens_per_s: float | None
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None
    acceptance_rate: float | None
    tokens_per_forward: float | None
    batch_width: float | None
    ratio_to_off: float | None = None
    ratio_to_concurrency_1: float | None = None

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        fields = asdict(self)
        del fields["level"], fields["rate"]
        return {str(self.level.sweep): self.level.value, **fields, **self.rate.to_object()}


def load_rows(levels: Sequence[Level], samples: Samples) -> list[LoadRow]:
    """Return one row a level and mode; a sample's case is the number of its level."""
    cells = {
        (level, mode): own
        for case, level in enumerate(levels)
        for mode in Speculation
        if (own := [one for one in samples.get(mode, ()) if one.case == case])
    }
    medians = {cell: Rate.of(own).median for cell, own in cells.items()}
    one = Level(Sweep.CONCURRENCY, 1)
    rows = []
    for (level, mode), own in cells.items():
        rate, base = medians[level, mode], medians.get((one, mode)) if level.sweep is one.sweep else None
        to_off = quotient(rate, medians.get((level, Speculation.OFF)))
        rows.append(_row(level, mode, own, ratio_to_off=to_off, ratio_to_concurrency_1=quotient(rate, base)))
    return rows


def _row(level: Level, mode: Speculation, samples: Sequence[Sample], **ratios: float | None) -> LoadRow:
    requests = [request for sample in samples for request in sample.requests]
    done = [one for one in requests if one.error is None]
    stats = [one.stats for one in done]
    rates = [rate for one in done if (rate := one.tokens_per_s) is not None]
    return LoadRow(
        level=level,
        speculation=mode,
        requests=len(requests),
        failed=len(requests) - len(done),
        failures_survived=sum(one.failures_survived for one in stats),
        mean_prompt_tokens=fmean(one.prompt_tokens for one in stats),
        rate=Rate.of(samples),
        request_tokens_per_s=median(rates) if rates else None,
        ttft_ms=Percentiles.of(one.ttft_s for one in done),
        tpot_ms=Percentiles.of(one.tpot_s for one in done),
        itl_ms=Percentiles.of(gap for one in done for gap in one.gaps_s),
        e2e_ms=Percentiles.of(one.e2e_s for one in done),
        acceptance_rate=acceptance_rate(stats),
        tokens_per_forward=tokens_per_forward(stats),
        batch_width=mean_batch_width(stats),
        **ratios,
    )


def mean_batch_width(stats: Iterable[MeasuredStats]) -> float | None:
    """Return the mean width of a forward, None where no verifier reported it.

    A forward that w sessions shared brought w verdicts that say w, so each of them stands for 1 / w of a forward.
    """
    widths: Counter[int] = sum((one.batch_widths for one in stats), Counter())
    return quotient(widths.total(), sum(count / width for width, count in widths.items()))
