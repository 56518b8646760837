"""Ways to draft, each measured in turns with the target alone: the ratio tells, whatever else the machine does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate_lab.bench.row_names import TARGET
from specgate_lab.experiment import Sample
from specgate_lab.statistics import Interval, Rate, acceptance_rate, ratio_interval
from specgate_lab.variants import Decode, decode_in_turns, pair_variant


@dataclass(frozen=True, slots=True)
class Gain:
    """What a way to draft brought: tokens a second, and those over the target alone's of the same minutes."""

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
        return f"{self.ratio:.2f} × the target alone{told_interval(self.interval)}"

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "name": self.name,
            "tokens_per_s": self.tokens_per_s,
            "ratio_to_target": self.ratio,
            "ratio_to_target_95": list(self.interval) if self.interval else None,
            "acceptance_rate": self.acceptance,
        }


WORTH_IT = 1.03
"""Less than this is no reason to run a second service."""


def told_interval(interval: Interval | None) -> str:
    """Return a 95 % interval in words, nothing where there is none."""
    return f" ({interval.low:.2f} to {interval.high:.2f})" if interval else ""


def gated(gate: Gate, gamma: int | None = None, threshold: float | None = None) -> GenerationRequest:
    """Return a request that stands for a gate, see ``pair_variant``."""
    return GenerationRequest((0,), gate=gate, gamma=gamma, gate_threshold=threshold)


async def measure_beside_target(
    ways: Mapping[str, tuple[Orchestrator, GenerationRequest]],
    target: Orchestrator,
    requests: Sequence[GenerationRequest],
    repeats: int,
    on_turn: Callable[[], None],
) -> dict[str, list[Sample]]:
    """Return the samples of every way and of ``TARGET``; a way is an orchestrator, and what stands for its gate."""
    alone = pair_variant(target, gated(Gate.NONE, 0))
    todo: dict[str, Decode] = {TARGET: alone}
    todo |= {name: pair_variant(orchestrator, like) for name, (orchestrator, like) in ways.items()}
    return await decode_in_turns(todo, requests, repeats, on_turn)


def gain_of(name: str, samples: Mapping[str, Sequence[Sample]], base: str = TARGET) -> Gain:
    """Return what a way brought over ``base``."""
    own, rates = samples[name], {key: Rate.of(samples[key]).median for key in (name, base)}
    return Gain(
        name,
        rates[name],
        rates[name] / rates[base] if rates[base] else 0.0,
        ratio_interval(own, samples[base]),
        acceptance_rate([stats for one in own for stats in one.stats]),
    )


def texts_differ(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Return the ways whose texts are not the target's, prompt by prompt."""
    told = {(one.case, one.repeat): one.token_ids for one in samples[TARGET]}
    return [
        name for name, own in samples.items() if any(told.get((one.case, one.repeat)) != one.token_ids for one in own)
    ]


def of_length(requests: Sequence[GenerationRequest], lengths: Sequence[int]) -> list[GenerationRequest]:
    """Return requests whose answers are exactly so long, whatever ends them otherwise: every way writes as much.

    Args:
        lengths: of the target's own answers. One of a single token has nothing to time, and is made longer.
    """
    return [
        replace(one, max_tokens=max(length, 2), ignore_eos=True, stop=(), stop_token_ids=frozenset())
        for one, length in zip(requests, lengths, strict=True)
    ]


def seeded(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Return requests that all ways answer alike: with a seed each, its number where none is given."""
    return [replace(one, seed=number if one.seed is None else one.seed) for number, one in enumerate(requests)]
