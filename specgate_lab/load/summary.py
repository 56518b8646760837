"""What the traces of one level come to. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from orchestrator.decode.request import GenerationStats
from specgate_lab.load.levels import Level, Speculation, Sweep
from specgate_lab.load.sweep import Runs
from specgate_lab.timeline import RequestTimeline


class Percentiles(NamedTuple):
    """Of one kind of time, in seconds."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Return those of the values that there are, None where there is none."""
        ordered = sorted(value for value in values if value is not None)
        if not ordered:
            return None
        return cls(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99), ordered[-1])

    def to_object(self) -> dict[str, float]:
        """Return them in milliseconds."""
        return {name: value * 1e3 for name, value in self._asdict().items()}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values lie below, by straight lines between neighbours, as numpy does."""
    place = share * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


@dataclass(frozen=True, slots=True)
class Summary:
    """One level in one mode. Total rates are one a repeat, with median and spread; times are pooled over repeats.

    ``tokens_per_s`` is all tokens over the busy span: from when the first request was due to the last delta of all.
    ``batch_width`` is the mean, over forwards of the target that decided something, of the sessions that shared one.
    Requests that broke off count in ``num_failed`` and in nothing else. ``num_survived`` lost services were replaced in
    mid-request, which the times of those requests show.
    """

    level: Level
    mode: Speculation
    num_requests: int
    num_failed: int
    num_survived: int
    mean_prompt_tokens: float
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
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
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_min": self.tokens_per_s_min,
            "tokens_per_s_max": self.tokens_per_s_max,
            "request_tokens_per_s": self.request_tokens_per_s,
            **{name: value.to_object() if value else None for name, value in times.items()},
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_forward": self.tokens_per_forward,
            "batch_width": self.batch_width,
            "ratio_to_off": self.ratio_to_off,
            "ratio_to_concurrency_1": self.ratio_to_one,
        }


def summaries(runs: Runs) -> list[Summary]:
    """Return one a level and mode, in the order of the runs."""
    rates = {cell: [_rate(traces) for traces in repeats] for cell, repeats in runs.items()}
    medians = {cell: median(values) for cell, values in rates.items()}
    one = Level(Sweep.CONCURRENCY, 1)
    return [
        _summary(
            *cell,
            traces=[trace for traces in repeats for trace in traces],
            rates=rates[cell],
            ratio_to_off=_ratio(medians[cell], medians.get((cell[0], Speculation.OFF))),
            ratio_to_one=_ratio(medians[cell], medians.get((one, cell[1]))) if cell[0].sweep is one.sweep else None,
        )
        for cell, repeats in runs.items()
    ]


def _summary(
    level: Level,
    mode: Speculation,
    traces: Sequence[RequestTimeline],
    rates: Sequence[float],
    ratio_to_off: float | None,
    ratio_to_one: float | None,
) -> Summary:
    done = [trace for trace in traces if trace.error is None]
    stats = [trace.stats for trace in done]
    own_rates = [rate for trace in done if (rate := trace.tokens_per_s) is not None]
    return Summary(
        level=level,
        mode=mode,
        num_requests=len(traces),
        num_failed=len(traces) - len(done),
        num_survived=sum(one.failures_survived for one in stats),
        mean_prompt_tokens=fmean(one.prompt_tokens for one in stats),
        tokens_per_s=median(rates),
        tokens_per_s_min=min(rates),
        tokens_per_s_max=max(rates),
        request_tokens_per_s=median(own_rates) if own_rates else None,
        ttft_s=Percentiles.of(trace.ttft_s for trace in done),
        tpot_s=Percentiles.of(trace.tpot_s for trace in done),
        itl_s=Percentiles.of(gap for trace in done for gap in trace.gaps_s),
        e2e_s=Percentiles.of(trace.e2e_s for trace in done),
        acceptance_rate=_ratio(sum(one.accepted for one in stats), sum(one.drafted for one in stats)),
        tokens_per_forward=_ratio(
            sum(one.completion_tokens for one in stats), sum(one.target_forwards for one in stats)
        ),
        batch_width=mean_batch_width(stats),
        ratio_to_off=ratio_to_off,
        ratio_to_one=ratio_to_one,
    )


def mean_batch_width(stats: Iterable[GenerationStats]) -> float | None:
    """Return the mean width of a forward, None where no verifier told it.

    A forward that w sessions shared brought w verdicts that say w, so each of them stands for 1 / w of a forward.
    """
    widths: Counter[int] = sum((one.batch_widths for one in stats), Counter())
    return _ratio(widths.total(), sum(count / width for width, count in widths.items()))


def _rate(traces: Sequence[RequestTimeline]) -> float:
    done = [trace for trace in traces if trace.error is None and trace.arrivals]
    if not done:
        return 0.0
    busy_s = max(trace.arrivals[-1].at_s for trace in done) - min(trace.due_s for trace in done)
    return _ratio(sum(trace.num_tokens for trace in done), busy_s) or 0.0


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
