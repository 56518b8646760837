"""Ways to draft, each measured in turns with the target alone: their ratio holds whatever else the machine does."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from specgate_lab.bench.row_names import TARGET
from specgate_lab.experiment import Sample, Samples
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.statistics import Interval, Rate, Ratio, acceptance_rate
from specgate_lab.variants import Decode, decode_in_turns, pair_variant

WORTH_IT = 1.03
"""Less than this is no reason to run a second service."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of a way to draft: tokens per second, and those over the target alone's of the same minutes."""

    name: str
    tokens_per_s: float
    ratio: float
    interval: Interval | None
    acceptance: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it drafts, and is faster for sure and by enough to bother."""
        is_sure = self.interval is not None and self.interval.low > 1.0
        return is_sure and self.ratio >= WORTH_IT and self.acceptance is not None

    def __str__(self) -> str:
        return f"{self.ratio:.2f} × the target alone{in_brackets(self.interval)}"

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "name": self.name,
            "tokens_per_s": self.tokens_per_s,
            "ratio_to_target": self.ratio,
            "ratio_to_target_95": list(self.interval) if self.interval else None,
            "acceptance_rate": self.acceptance,
        }


def in_brackets(interval: Interval | None) -> str:
    """Return a 95 % interval in words, nothing where there is none."""
    return f" ({interval.low:.2f} to {interval.high:.2f})" if interval else ""


async def measure_beside_target(
    variants: Mapping[str, Decode],
    target: Orchestrator,
    requests: Sequence[GenerationRequest],
    repeats: int,
    on_turn: Callable[[], None],
    budget_s: float = math.inf,
) -> dict[str, list[Sample]]:
    """Return the samples of ``TARGET`` and of every variant; see ``measure`` for the budget."""
    todo = {TARGET: pair_variant(target, TARGET_ALONE), **variants}
    return await decode_in_turns(todo, requests, repeats, on_turn, budget_s)


def gain_of(name: str, samples: Samples, base: str = TARGET) -> Gain:
    """Return the gain of a variant over ``base``."""
    own, ratio = samples[name], Ratio.of(samples[name], samples[base])
    acceptance = acceptance_rate([stats for sample in own for stats in sample.stats])
    return Gain(name, Rate.of(own).median, ratio.value, ratio.interval, acceptance)


def texts_differ(samples: Samples) -> list[str]:
    """Return the variants whose texts are not the target's, prompt by prompt."""
    expected = {(one.case, one.repeat): one.token_ids for one in samples[TARGET]}
    return [
        name
        for name, own in samples.items()
        if any(expected.get((one.case, one.repeat)) != one.token_ids for one in own)
    ]


def fault_words(names: Collection[str]) -> list[str]:
    """Return a sentence on variants whose texts are not the target's, none where there are none."""
    return (
        [f"Texts were not the target's with: {', '.join(sorted(names))}. That is a fault; report it."] if names else []
    )


def of_length(requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[GenerationRequest]:
    """Return requests whose answers have exactly these lengths, so that every variant writes as much.

    Args:
        lengths: of the target's own answers. One of a single token has nothing to time, and is made longer.
    """
    return [
        replace(one, max_tokens=max(length, 2), ignore_eos=True, stop=(), stop_token_ids=frozenset())
        for one, length in zip(requests, lengths, strict=True)
    ]


def seeded(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Return requests with a seed each, so that all variants answer alike: its number where none is given."""
    return [replace(one, seed=number if one.seed is None else one.seed) for number, one in enumerate(requests)]
