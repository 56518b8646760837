"""What samples come to: rates, percentiles, and ratios with their intervals. Pure."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import median
from typing import NamedTuple, Self

from orchestrator.decode.request import GenerationStats
from specgate_lab.experiment import Sample

NUM_RESAMPLES = 2000
MIN_CELLS = 4
"""Fewer runs say nothing about how runs differ, so there is no interval."""
_TAIL = 0.025


def quotient(part: float, whole: float | None) -> float | None:
    """Return ``part / whole``, None where there is nothing to divide by."""
    return part / whole if whole else None


def acceptance_rate(stats: Sequence[GenerationStats]) -> float | None:
    """Return the share of all draft tokens that were accepted."""
    return quotient(sum(one.accepted for one in stats), sum(one.drafted for one in stats))


def tokens_per_forward(stats: Sequence[GenerationStats]) -> float | None:
    """Return all tokens over all forwards of the target."""
    return quotient(sum(one.completion_tokens for one in stats), sum(one.target_forwards for one in stats))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values lie below, interpolated linearly as numpy does."""
    place = share * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one kind of time, in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> Self | None:
        """Return the percentiles of the times that are not None; None where all are."""
        ordered = sorted(value * 1e3 for value in seconds if value is not None)
        if not ordered:
            return None
        return cls(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99), ordered[-1])


class Rate(NamedTuple):
    """Tokens per second: the median over repeats, the slowest and the fastest repeat."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Self:
        """Return the rate of one variant; a repeat's rate is its cases' tokens over their seconds."""
        repeats = sorted({sample.repeat for sample in samples})
        rates = [pooled_rate([sample for sample in samples if sample.repeat == repeat]) for repeat in repeats]
        return cls(median(rates), min(rates), max(rates))

    def to_object(self) -> dict[str, float]:
        """Return it as results files have it."""
        return {"tokens_per_s": self.median, "tokens_per_s_min": self.min, "tokens_per_s_max": self.max}


class _Cell(NamedTuple):
    tokens: int
    seconds: float


def pooled_rate(samples: Sequence[Sample] | Sequence[_Cell]) -> float:
    """Return all tokens over all seconds, 0 where no time passed."""
    return quotient(sum(one.tokens for one in samples), sum(one.seconds for one in samples)) or 0.0


class Interval(NamedTuple):
    """The middle 95 % of the resamples."""

    low: float
    high: float


class Ratio(NamedTuple):
    """The rate of one variant over that of another; no interval where there are few runs."""

    value: float
    interval: Interval | None

    @classmethod
    def of(cls, samples: Sequence[Sample], base: Sequence[Sample]) -> Self:
        """Return the ratio of the two rates, 0 where the base has none."""
        return cls(quotient(Rate.of(samples).median, Rate.of(base).median) or 0.0, ratio_interval(samples, base))


def ratio_interval(samples: Sequence[Sample], base: Sequence[Sample], seed: int = 0) -> Interval | None:
    """Return the 95 % interval of the ratio of two variants' rates, by a bootstrap over pairs.

    Each resample draws cases and repeats with replacement, the same ones for both variants, because they ran side by
    side; then it takes the ratio of the medians over repeats. So the interval contains the noise of the machine and the
    choice of the cases. None with fewer than ``MIN_CELLS`` pairs of case and repeat.
    """
    ours, theirs = _cells(samples), _cells(base)
    common = ours.keys() & theirs.keys()
    if len(common) < MIN_CELLS:
        return None
    cases, repeats = sorted({case for case, _ in common}), sorted({repeat for _, repeat in common})
    rng = random.Random(seed)
    ratios = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.choices(cases, k=len(cases)), rng.choices(repeats, k=len(repeats))
        ratios.append(_median_rate(ours, *drawn) / (_median_rate(theirs, *drawn) or float("inf")))
    ratios.sort()
    return Interval(percentile(ratios, _TAIL), percentile(ratios, 1 - _TAIL))


def _cells(samples: Sequence[Sample]) -> dict[tuple[int, int], _Cell]:
    cells: defaultdict[tuple[int, int], _Cell] = defaultdict(lambda: _Cell(0, 0.0))
    for one in samples:
        tokens, seconds = cells[one.case, one.repeat]
        cells[one.case, one.repeat] = _Cell(tokens + one.tokens, seconds + one.seconds)
    return dict(cells)


def _median_rate(cells: dict[tuple[int, int], _Cell], cases: Sequence[int], repeats: Sequence[int]) -> float:
    return median(pooled_rate([cells[case, at] for case in cases if (case, at) in cells]) for at in repeats)
