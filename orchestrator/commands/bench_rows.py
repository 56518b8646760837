"""What the benchmark measures, and the rows that come of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.commands.results import Result, hit_draft_shares, median_or_none, rest_us
from orchestrator.request import GenerationStats

DRAFT = "draft"
TARGET_HF = "target-hf"
TARGET_HF_ALL_CORES = "target-hf-all-cores"
TARGET = "target"
SPEC = "spec"
SPEC_GATE = "spec+gate"
ROW_NAMES = (DRAFT, TARGET_HF, TARGET_HF_ALL_CORES, TARGET, SPEC, SPEC_GATE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt decoded once, in one way; prefill and the first delta are left out of the times."""

    prompt: int
    repeat: int
    token_ids: tuple[int, ...]
    decode_tokens: int
    decode_s: float
    stats: GenerationStats | None = None

    @classmethod
    def of(cls, result: Result, prompt: int, repeat: int) -> "Sample":
        """Return the sample that a finished request makes."""
        seconds = result.last_s - result.first_s
        return cls(prompt, repeat, result.token_ids, result.decode_tokens, seconds, result.stats)


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Medians over rounds, in microseconds; ``rest`` is the round minus draft minus verify."""

    draft: float | None = None
    verify: float | None = None
    rest: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. What has no meaning for a row is None."""

    name: str
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    ratio_to_hf: float | None = None
    ratio_to_target: float | None = None
    acceptance_rate: float | None = None
    tokens_per_forward: float | None = None
    solo_share: float | None = None
    run_ahead_hit_rate: float | None = None
    hit_draft_share: float | None = None
    round_us: RoundTimes = RoundTimes()
    near_ties: int | None = None

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        times = {"draft": self.round_us.draft, "verify": self.round_us.verify, "rest": self.round_us.rest}
        return {
            "name": self.name,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_min": self.tokens_per_s_min,
            "tokens_per_s_max": self.tokens_per_s_max,
            "ratio_to_hf": self.ratio_to_hf,
            "ratio_to_target": self.ratio_to_target,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_forward": self.tokens_per_forward,
            "solo_share": self.solo_share,
            "run_ahead_hit_rate": self.run_ahead_hit_rate,
            "hit_draft_share": self.hit_draft_share,
            "round_us": times,
            "near_ties": self.near_ties,
        }


def rows_of(samples: Mapping[str, Sequence[Sample]]) -> list[Row]:
    """Return one row a name, in the order of ``ROW_NAMES``."""
    rates = {name: _rates(samples[name]) for name in ROW_NAMES if name in samples}
    medians = {name: median(values) for name, values in rates.items()}
    return [_row(name, values, medians, samples[name]) for name, values in rates.items()]


def _rates(samples: Sequence[Sample]) -> list[float]:
    """Tokens a second of each repeat, over all its prompts."""
    rates = []
    for repeat in sorted({sample.repeat for sample in samples}):
        same = [sample for sample in samples if sample.repeat == repeat]
        seconds = sum(sample.decode_s for sample in same)
        rates.append(sum(sample.decode_tokens for sample in same) / seconds if seconds > 0 else 0.0)
    return rates


def _row(name: str, rates: Sequence[float], medians: Mapping[str, float], samples: Sequence[Sample]) -> Row:
    rate = medians[name]
    stats = [sample.stats for sample in samples if sample.stats]
    drafted, forwards = sum(one.drafted for one in stats), sum(one.target_forwards for one in stats)
    tokens = sum(one.completion_tokens for one in stats)
    return Row(
        name=name,
        tokens_per_s=rate,
        tokens_per_s_min=min(rates),
        tokens_per_s_max=max(rates),
        ratio_to_hf=_ratio(rate, medians.get(TARGET_HF)),
        ratio_to_target=_ratio(rate, medians.get(TARGET)),
        acceptance_rate=_ratio(sum(one.accepted for one in stats), drafted),
        tokens_per_forward=_ratio(tokens, forwards),
        solo_share=_ratio(sum(one.solo_tokens for one in stats), tokens),
        run_ahead_hit_rate=_ratio(sum(sum(one.prepared) for one in stats), sum(one.rounds for one in stats)),
        hit_draft_share=median_or_none([share for one in stats for share in hit_draft_shares(one)]),
        round_us=_round_times(stats),
        near_ties=sum(one.near_ties for one in stats) if stats else None,
    )


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _round_times(stats: Sequence[GenerationStats]) -> RoundTimes:
    return RoundTimes(
        draft=median_or_none([us for one in stats for us in one.draft_us]),
        verify=median_or_none([us for one in stats for us in one.verify_us]),
        rest=median_or_none([us for one in stats for us in rest_us(one)]),
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """For how many prompts all of ``names`` gave the same tokens."""

    names: tuple[str, ...]
    equal: int
    total: int

    @property
    def holds(self) -> bool:
        return self.equal == self.total


def agreement_of(samples: Mapping[str, Sequence[Sample]], names: Sequence[str]) -> Agreement:
    """Compare the token ids of every prompt over ``names`` and all repeats."""
    prompts = sorted({sample.prompt for name in names for sample in samples[name]})
    equal = 0
    for prompt in prompts:
        texts = {sample.token_ids for name in names for sample in samples[name] if sample.prompt == prompt}
        equal += len(texts) == 1
    return Agreement(tuple(names), equal, len(prompts))
