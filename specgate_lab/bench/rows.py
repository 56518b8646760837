"""The rows of the benchmark's table, and whether all ways to decode wrote the same text, where they must. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.terminal.results import hit_draft_shares, median_or_none, overhead_us
from specgate.types import SamplingParams
from specgate_lab.bench.ceiling import ModelTimes, ceiling_of, model_times
from specgate_lab.bench.row_names import (
    AHEAD_ROWS,
    HF_ASSISTED,
    PAIR_ROWS,
    RIVALS,
    ROW_NAMES,
    SCHEDULED_ROWS,
    SPEC,
    TARGET,
    TARGET_HF,
    by_schedule,
)
from specgate_lab.experiment import Sample, Samples
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.statistics import Interval, Rate, Ratio, acceptance_rate, quotient, ratio_interval, tokens_per_forward


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Medians over rounds, in microseconds; ``overhead`` is the round minus draft minus verify."""

    draft: float | None = None
    verify: float | None = None
    overhead: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. What has no meaning for a row is None.

    ``ratio_to_target_95`` is the 95 % interval of ``ratio_to_target``. ``ceiling_tokens_per_s`` is what
    ``ceiling`` makes of the row's own rounds. Bytes are those of the messages on both links. ``schedules`` are
    the rates of the schedules that a scheduled row is the better one of. ``ratios_to_rivals`` are to ``RIVALS``.
    ``failures_survived`` services were lost, or too slow to answer.
    """

    name: str
    rate: Rate
    ratio_to_hf: float | None = None
    ratio_to_target: float | None = None
    ratio_to_target_95: Interval | None = None
    acceptance_rate: float | None = None
    tokens_per_forward: float | None = None
    solo_share: float | None = None
    run_ahead_hit_rate: float | None = None
    hit_draft_share: float | None = None
    round_us: RoundTimes = RoundTimes()
    near_ties: int | None = None
    failures_survived: int = 0
    ceiling_tokens_per_s: float | None = None
    model_us: ModelTimes | None = None
    bytes_per_round: float | None = None
    bytes_per_token: float | None = None
    messages_per_token: float | None = None
    schedule: str | None = None
    schedules: Mapping[str, Rate] = field(default_factory=dict)
    ratios_to_rivals: Mapping[str, Ratio] = field(default_factory=dict)

    @property
    def share_of_ceiling(self) -> float | None:
        return quotient(self.rate.median, self.ceiling_tokens_per_s)

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        fields = asdict(self)
        del fields["rate"]
        return {
            **fields,
            **self.rate.to_object(),
            "share_of_ceiling": self.share_of_ceiling,
            "schedules": {name: rate.to_object() for name, rate in self.schedules.items()},
            "ratios_to_rivals": {
                name: {"value": ratio.value, "95": ratio.interval} for name, ratio in self.ratios_to_rivals.items()
            },
        }


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """For how many prompts all of ``names`` gave the same tokens."""

    names: tuple[str, ...]
    equal: int
    total: int

    @property
    def holds(self) -> bool:
        return self.equal == self.total


@dataclass(frozen=True, slots=True)
class RowsReport:
    """Rows that were measured together, and for how many prompts their texts were equal where they must be."""

    rows: Sequence[Row]
    agreement: TextAgreement | None

    def to_object(self) -> dict[str, Any]:
        """Return it as ``--json`` writes it."""
        rows = [row.to_object() for row in self.rows]
        return {"rows": rows, "agreement": asdict(self.agreement) if self.agreement else None}


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
    stats, on_demand = _stats(own), _stats(samples.get(SPEC, ())) if name in AHEAD_ROWS else []
    rounds, tokens = sum(one.rounds for one in stats), sum(one.completion_tokens for one in stats)
    traffic = sum(sample.traffic_bytes or 0 for sample in own) or None
    return Row(
        name=name,
        rate=rate,
        ratio_to_hf=_over(rates, name, TARGET_HF),
        ratio_to_target=_over(rates, name, TARGET),
        ratio_to_target_95=ratio_interval(own, samples[TARGET]) if TARGET in rates and name != TARGET else None,
        acceptance_rate=acceptance_rate(stats),
        tokens_per_forward=tokens_per_forward(stats),
        solo_share=quotient(sum(one.solo_tokens for one in stats), tokens),
        run_ahead_hit_rate=quotient(sum(sum(one.prepared) for one in stats), rounds),
        hit_draft_share=median_or_none([share for one in stats for share in hit_draft_shares(one)]),
        round_us=_round_times(stats),
        near_ties=sum(one.near_ties for one in stats) if stats else None,
        failures_survived=sum(one.failures_survived for one in stats),
        ceiling_tokens_per_s=ceiling_of(stats, on_demand),
        model_us=model_times(stats, on_demand) if stats else None,
        bytes_per_round=quotient(traffic, rounds) if traffic else None,
        bytes_per_token=quotient(traffic, tokens) if traffic else None,
        messages_per_token=quotient(sum(one.traffic_messages or 0 for one in own), tokens) if traffic else None,
        ratios_to_rivals={
            rival: Ratio.of(own, samples[rival])
            for rival in RIVALS.get(name, ())
            if rival in rates and rates[rival].median
        },
        **more,
    )


def _over(rates: Mapping[str, Rate], name: str, base: str) -> float | None:
    return quotient(rates[name].median, rates[base].median) if base in rates else None


def _stats(samples: Sequence[Sample]) -> list[MeasuredStats]:
    return [stats for sample in samples for stats in sample.stats]


def _round_times(stats: Sequence[MeasuredStats]) -> RoundTimes:
    return RoundTimes(
        draft=median_or_none([us for one in stats for us in one.draft_us]),
        verify=median_or_none([us for one in stats for us in one.verify_us]),
        overhead=median_or_none([us for one in stats for us in overhead_us(one)]),
    )


def promised_agreement(
    samples: Samples, requests: Sequence[GenerationRequest], ours: Sequence[str] = PAIR_ROWS
) -> TextAgreement | None:
    """Compare the texts that are promised to be equal; rejection above temperature 0 promises a law, no text.

    Args:
        ours: the rows that go through our services.
    """
    if any(one.rejects for one in requests):
        return None
    # HuggingFace draws in its own way, and its loops know nothing of penalties and biases.
    is_plain = all(one.sampling == SamplingParams(temperature=0.0) for one in requests)
    names = (TARGET_HF, HF_ASSISTED, *ours) if is_plain else tuple(ours)
    present = {name: own for name in names if (own := _samples_of(samples, name))}
    texts: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    for sample in chain.from_iterable(present.values()):
        texts[sample.case].add(sample.token_ids)
    return TextAgreement(tuple(present), sum(len(own) == 1 for own in texts.values()), len(texts))


def _samples_of(samples: Samples, name: str) -> Sequence[Sample]:
    """Return a row's samples, those of all schedules."""
    if name in SCHEDULED_ROWS:
        return [sample for own in by_schedule(samples, name).values() for sample in own]
    return samples.get(name, ())
