"""An experiment: variants run the same cases in turns, and every run gives a sample."""

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.timeline import RequestTimeline

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Sample:
    """One case, run once by one variant: ``tokens`` came within ``seconds``.

    For a single request both exclude the prefill and the first delta. ``requests`` are the case's requests, where this
    process timed them. ``traffic_bytes``, in ``traffic_messages``, crossed both links after the sessions were open.
    ``case`` is an index; ``first_s`` is until the first token, where it was timed.
    """

    tokens: int
    seconds: float
    token_ids: tuple[int, ...] = ()
    requests: tuple[RequestTimeline, ...] = ()
    traffic_bytes: int | None = None
    case: int = 0
    repeat: int = 0
    first_s: float | None = None
    traffic_messages: int | None = None

    @property
    def stats(self) -> list[MeasuredStats]:
        """The statistics of the requests that ended."""
        return [one.stats for one in self.requests if one.error is None]


Samples = Mapping[str, Sequence[Sample]]
"""By the name of the variant."""
Variant = Callable[[C], Awaitable[Sample]]
"""Runs a case once, in one way. ``measure`` fills in the numbers of case and repeat."""


def turns(variants: Sequence[str], num_cases: int, repeat: int) -> Iterator[tuple[int, str]]:
    """Yield each case with every variant; another variant is first in each case and each repeat.

    So the variants of a case run next to each other, and a machine that grows slower favours none of them.
    """
    for case in range(num_cases):
        first = (repeat + case) % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            yield case, variant


async def measure(
    variants: Mapping[str, Variant[C]],
    cases: Sequence[C],
    repeats: int,
    on_turn: Callable[[], None] = lambda: None,
    *,
    warm_up: Sequence[C] = (),
    budget_s: float = math.inf,
) -> dict[str, list[Sample]]:
    """Return each variant's samples, in the order in which they were taken.

    Args:
        on_turn: called after each measured run.
        warm_up: cases that every variant runs first; their samples are thrown away.
        budget_s: no repeat starts after so many seconds, so every variant has as many samples.
    """
    start_s = time.perf_counter()
    for run in variants.values():
        for unmeasured in warm_up:
            await run(unmeasured)
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for repeat in range(repeats):
        if repeat and time.perf_counter() - start_s > budget_s:
            break
        for case, name in turns(tuple(variants), len(cases), repeat):
            sample = await variants[name](cases[case])
            samples[name].append(replace(sample, case=case, repeat=repeat))
            on_turn()
    return samples
