"""The rows of the benchmark's table. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

from orchestrator.decode.request import GenerationStats
from orchestrator.terminal.results import hit_draft_shares, median_or_none, overhead_us
from specgate_lab.throughput.ceiling import ModelTimes, ceiling_of, model_times
from specgate_lab.throughput.interval import Interval, ratio_interval
from specgate_lab.throughput.samples import (
    AHEAD_ROWS,
    RIVALS,
    ROW_NAMES,
    SCHEDULED_ROWS,
    SPEC,
    TARGET,
    TARGET_HF,
    Sample,
    Samples,
    by_schedule,
    rates_of,
)


class Rate(NamedTuple):
    """Tokens a second: the median over repeats, and its spread."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Rate":
        """Return the rate of one row's samples."""
        rates = rates_of(samples)
        return cls(median(rates), min(rates), max(rates))

    def to_object(self) -> dict[str, float]:
        """Return it as ``--json`` writes it."""
        return {"tokens_per_s": self.median, "tokens_per_s_min": self.min, "tokens_per_s_max": self.max}


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Medians over rounds, in microseconds; ``overhead`` is the round minus draft minus verify."""

    draft: float | None = None
    verify: float | None = None
    overhead: float | None = None


class Ratio(NamedTuple):
    """Of a row's rate to that of another one, with its 95 % interval where there are samples enough."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. What has no meaning for a row is None.

    ``interval_to_target`` is the 95 % interval of ``ratio_to_target``. ``ceiling_tokens_per_s`` is what
    ``ceiling`` makes of the row's own rounds. Bytes are those of the messages on both links. ``schedules`` are
    the rates of the schedules that a scheduled row is the better one of. ``ratios_to_rivals`` are to ``RIVALS``.
    ``num_survived`` services were lost, or too slow to answer.
    """

    name: str
    rate: Rate
    ratio_to_hf: float | None = None
    ratio_to_target: float | None = None
    interval_to_target: Interval | None = None
    acceptance_rate: float | None = None
    tokens_per_forward: float | None = None
    solo_share: float | None = None
    run_ahead_hit_rate: float | None = None
    hit_draft_share: float | None = None
    round_us: RoundTimes = RoundTimes()
    near_ties: int | None = None
    num_survived: int = 0
    ceiling_tokens_per_s: float | None = None
    model_us: ModelTimes | None = None
    bytes_per_round: float | None = None
    bytes_per_token: float | None = None
    schedule: str | None = None
    schedules: Mapping[str, Rate] = field(default_factory=dict)
    ratios_to_rivals: Mapping[str, Ratio] = field(default_factory=dict)

    @property
    def share_of_ceiling(self) -> float | None:
        return _ratio(self.rate.median, self.ceiling_tokens_per_s)

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        return {
            "name": self.name,
            **self.rate.to_object(),
            "ratio_to_hf": self.ratio_to_hf,
            "ratio_to_target": self.ratio_to_target,
            "ratio_to_target_95": list(self.interval_to_target) if self.interval_to_target else None,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_forward": self.tokens_per_forward,
            "solo_share": self.solo_share,
            "run_ahead_hit_rate": self.run_ahead_hit_rate,
            "hit_draft_share": self.hit_draft_share,
            "round_us": asdict(self.round_us),
            "near_ties": self.near_ties,
            "failures_survived": self.num_survived,
            "ceiling_tokens_per_s": self.ceiling_tokens_per_s,
            "share_of_ceiling": self.share_of_ceiling,
            "model_us": asdict(self.model_us) if self.model_us else None,
            "bytes_per_round": self.bytes_per_round,
            "bytes_per_token": self.bytes_per_token,
            "schedule": self.schedule,
            "schedules": {name: rate.to_object() for name, rate in self.schedules.items()},
            "ratios_to_rivals": {
                name: {"value": ratio.value, "95": list(ratio.interval) if ratio.interval else None}
                for name, ratio in self.ratios_to_rivals.items()
            },
        }


def rows_of(samples: Samples, names: Sequence[str] = ROW_NAMES) -> list[Row]:
    """Return one row a name, in the order of ``names``."""
    schedules = {name: found for name in SCHEDULED_ROWS if (found := by_schedule(samples, name))}
    best = {name: max(found, key=lambda one: Rate.of(found[one]).median) for name, found in schedules.items()}
    samples = {**samples, **{name: schedules[name][schedule] for name, schedule in best.items()}}
    rates = {name: Rate.of(samples[name]) for name in names if name in samples}
    return [
        _row(
            name,
            rates,
            samples,
            schedule=best.get(name),
            schedules={schedule: Rate.of(own) for schedule, own in schedules.get(name, {}).items()},
        )
        for name in rates
    ]


def _row(name: str, rates: Mapping[str, Rate], samples: Samples, **more: Any) -> Row:
    rate, own = rates[name], samples[name]
    stats, on_demand = _stats(own), _stats(samples[SPEC]) if name in AHEAD_ROWS and SPEC in samples else []
    drafted, forwards = sum(one.drafted for one in stats), sum(one.target_forwards for one in stats)
    tokens, traffic = sum(one.completion_tokens for one in stats), _traffic(own)
    return Row(
        name=name,
        rate=rate,
        ratio_to_hf=_ratio(rate.median, rates[TARGET_HF].median) if TARGET_HF in rates else None,
        ratio_to_target=_ratio(rate.median, rates[TARGET].median) if TARGET in rates else None,
        interval_to_target=ratio_interval(own, samples[TARGET]) if TARGET in rates and name != TARGET else None,
        acceptance_rate=_ratio(sum(one.accepted for one in stats), drafted),
        tokens_per_forward=_ratio(tokens, forwards),
        solo_share=_ratio(sum(one.solo_tokens for one in stats), tokens),
        run_ahead_hit_rate=_ratio(sum(sum(one.prepared) for one in stats), sum(one.rounds for one in stats)),
        hit_draft_share=median_or_none([share for one in stats for share in hit_draft_shares(one)]),
        round_us=_round_times(stats),
        near_ties=sum(one.near_ties for one in stats) if stats else None,
        num_survived=sum(one.failures_survived for one in stats),
        ceiling_tokens_per_s=ceiling_of(stats, on_demand),
        model_us=model_times(stats, on_demand) if stats else None,
        bytes_per_round=_ratio(traffic, sum(one.rounds for one in stats)) if traffic else None,
        bytes_per_token=_ratio(traffic, tokens) if traffic else None,
        ratios_to_rivals=_to_rivals(rates, samples, name),
        **more,
    )


def _to_rivals(rates: Mapping[str, Rate], samples: Samples, name: str) -> dict[str, Ratio]:
    return {
        rival: Ratio(rates[name].median / rates[rival].median, ratio_interval(samples[name], samples[rival]))
        for rival in RIVALS.get(name, ())
        if rival in rates and rates[rival].median
    }


def _stats(samples: Sequence[Sample]) -> list[GenerationStats]:
    return [sample.stats for sample in samples if sample.stats]


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _traffic(samples: Sequence[Sample]) -> int:
    return sum(sample.traffic_bytes or 0 for sample in samples)


def _round_times(stats: Sequence[GenerationStats]) -> RoundTimes:
    return RoundTimes(
        draft=median_or_none([us for one in stats for us in one.draft_us]),
        verify=median_or_none([us for one in stats for us in one.verify_us]),
        overhead=median_or_none([us for one in stats for us in overhead_us(one)]),
    )
