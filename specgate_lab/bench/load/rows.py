"""The rows of the load tables. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from orchestrator.decode.request import GenerationStats
from specgate_lab.bench.load.levels import Level, Speculation, Sweep
from specgate_lab.experiment import Sample, Samples
from specgate_lab.statistics import Percentiles, Rate, acceptance_rate, quotient, tokens_per_forward


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One level in one mode. ``rate`` is of all requests together, one a repeat; times are pooled over repeats.

    ``batch_width`` is the mean, over forwards of the target that decided something, of the sessions that shared one.
    Requests that broke off count in ``num_failed`` and in nothing else. ``num_survived`` services were lost and
    replaced during requests, which the times of those requests show.
    """

    level: Level
    mode: Speculation
    num_requests: int
    num_failed: int
    num_survived: int
    mean_prompt_tokens: float
    rate: Rate
    request_tokens_per_s: float | None
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_s: Percentiles | None
    acceptance_rate: float | None
    tokens_per_forward: float | None
    batch_width: float | None
    ratio_to_off: float | None = None
    ratio_to_one: float | None = None

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it; times in milliseconds."""
        times = {"ttft_ms": self.ttft_s, "tpot_ms": self.tpot_s, "itl_ms": self.itl_s, "e2e_ms": self.e2e_s}
        return {
            str(self.level.sweep): self.level.value,
            "speculation": str(self.mode),
            "requests": self.num_requests,
            "failed": self.num_failed,
            "failures_survived": self.num_survived,
            "mean_prompt_tokens": self.mean_prompt_tokens,
            **self.rate.to_object(),
            "request_tokens_per_s": self.request_tokens_per_s,
            **{name: value.to_object() if value else None for name, value in times.items()},
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_forward": self.tokens_per_forward,
            "batch_width": self.batch_width,
            "ratio_to_off": self.ratio_to_off,
            "ratio_to_concurrency_1": self.ratio_to_one,
        }


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
    return [
        _row(
            level,
            mode,
            own,
            ratio_to_off=quotient(medians[level, mode], medians.get((level, Speculation.OFF))),
            ratio_to_one=quotient(medians[level, mode], medians.get((one, mode))) if level.sweep is one.sweep else None,
        )
        for (level, mode), own in cells.items()
    ]


def _row(level: Level, mode: Speculation, samples: Sequence[Sample], **ratios: float | None) -> LoadRow:
    requests = [request for sample in samples for request in sample.requests]
    done = [one for one in requests if one.error is None]
    stats = [one.stats for one in done]
    rates = [rate for one in done if (rate := one.tokens_per_s) is not None]
    return LoadRow(
        level=level,
        mode=mode,
        num_requests=len(requests),
        num_failed=len(requests) - len(done),
        num_survived=sum(one.failures_survived for one in stats),
        mean_prompt_tokens=fmean(one.prompt_tokens for one in stats),
        rate=Rate.of(samples),
        request_tokens_per_s=median(rates) if rates else None,
        ttft_s=Percentiles.of(one.ttft_s for one in done),
        tpot_s=Percentiles.of(one.tpot_s for one in done),
        itl_s=Percentiles.of(gap for one in done for gap in one.gaps_s),
        e2e_s=Percentiles.of(one.e2e_s for one in done),
        acceptance_rate=acceptance_rate(stats),
        tokens_per_forward=tokens_per_forward(stats),
        batch_width=mean_batch_width(stats),
        **ratios,
    )


def mean_batch_width(stats: Iterable[GenerationStats]) -> float | None:
    """Return the mean width of a forward, None where no verifier reported it.

    A forward that w sessions shared brought w verdicts that say w, so each of them stands for 1 / w of a forward.
    """
    widths: Counter[int] = sum((one.batch_widths for one in stats), Counter())
    return quotient(widths.total(), sum(count / width for width, count in widths.items()))
