"""One case measured: all choices in turns, block by block, on the same services."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate_lab.arrivals import closed_loop
from specgate_lab.experiment import Sample, Samples, Variant, measure
from specgate_lab.gate_choice import ALONE, AUTO, GateChoice
from specgate_lab.gates.cases import Case, requests_of
from specgate_lab.statistics import Ratio, pooled_rate
from specgate_lab.timeline import Clock, RequestTimeline, Start, time_request


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The blocks of each choice, in the same order."""

    case: Case
    samples: Samples

    @property
    def rates(self) -> dict[str, float]:
        return {name: pooled_rate(blocks) for name, blocks in self.samples.items()}

    @property
    def best_fixed(self) -> str:
        rates = self.rates
        return max((name for name in rates if name != AUTO), key=rates.__getitem__)

    @property
    def num_survived(self) -> int:
        """Services that were lost, or too slow to answer: with them these are no rates."""
        return sum(one.failures_survived for blocks in self.samples.values() for block in blocks for one in block.stats)

    def auto_to(self, name: str) -> Ratio:
        """Return the ratio of ``auto`` to another choice."""
        return Ratio.of(self.samples[AUTO], self.samples[name])

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        blocks = {
            name: [{"tokens": one.tokens, "seconds": one.seconds} for one in samples]
            for name, samples in self.samples.items()
        }
        return {
            **self.case._asdict(),
            "best_fixed": self.best_fixed,
            "auto_to_best": _ratio_object(self.auto_to(self.best_fixed)),
            "choices": [self._choice_object(name) for name in self.samples],
            "failures_survived": self.num_survived,
            "blocks": blocks,
        }

    def _choice_object(self, name: str) -> dict[str, Any]:
        """Return a choice's rate, the share of its draft tokens that were accepted, of all and of judged ones."""
        stats = [one for block in self.samples[name] for one in block.stats]
        accepted = sum(one.accepted for one in stats)
        all_drafted, judged = sum(sum(one.draft_lengths) for one in stats), sum(one.drafted for one in stats)
        return {
            "name": name,
            "tokens_per_s": pooled_rate(self.samples[name]),
            "ratio_to_alone": _ratio_object(Ratio.of(self.samples[name], self.samples[ALONE])),
            "accepted_of_drafted": accepted / all_drafted if all_drafted else None,
            "accepted_of_judged": accepted / judged if judged else None,
        }


def _ratio_object(ratio: Ratio) -> dict[str, float | None]:
    low, high = ratio.interval or (None, None)
    return {"value": ratio.value, "low": low, "high": high}


async def measure_case(
    fixed: Start,
    auto: Start,
    case: Case,
    choices: Sequence[GateChoice],
    prompts: Sequence[GenerationRequest],
    num_blocks: int,
    num_warm_up: int,
    on_block: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> CaseResult:
    """Measure ``num_blocks`` blocks of every choice.

    The blocks of a warm-up, whose seeds are those that follow, are not measured: the gate ``auto`` learns from all of
    them, a fixed choice runs the last one. (Without sampling a seed changes nothing: texts come again as prompts do.)

    Args:
        fixed: starts requests of the fixed choices, so that ``auto`` learns from its own rounds alone.
        auto: starts requests of ``auto``, and has learned nothing yet.

    Raises:
        SpecgateError: a request broke off.
    """
    variants = {
        str(one): block_variant(auto if one.gate is Gate.AUTO else fixed, one, case.concurrency, clock)
        for one in choices
    }
    blocks = [requests_of(case, prompts, number) for number in range(num_blocks + num_warm_up)]
    measured, warm_up = blocks[:num_blocks], blocks[num_blocks:]
    for block in warm_up[:-1]:
        await variants[AUTO](block)
        on_block()
    return CaseResult(case, await measure(variants, measured, 1, on_block, warm_up=warm_up[-1:]))


def block_variant(
    start: Start, choice: GateChoice, num_clients: int, clock: Clock = time.perf_counter
) -> Variant[Sequence[GenerationRequest]]:
    """Return what runs a block of requests under one choice, by so many clients."""

    async def run(requests: Sequence[GenerationRequest]) -> Sample:
        start_s = clock()
        send = partial(time_request, start, clock=clock)
        timelines = await closed_loop(send, [choice.of(request) for request in requests], num_clients, clock)
        return block_sample([one.whole() for one in timelines], start_s, num_clients)

    return run


def block_sample(timelines: Sequence[RequestTimeline], start_s: float, num_clients: int) -> Sample:
    """Return the sample of a block whose first request was sent at ``start_s``."""
    # A block ends when a client has nothing left to ask for: fewer clients than the case says are no case.
    end_s = sorted(one.arrivals[-1].at_s for one in timelines)[-num_clients]
    arrivals = (arrival for one in timelines for arrival in one.arrivals if arrival.at_s <= end_s)
    return Sample(sum(arrival.num_tokens for arrival in arrivals), end_s - start_s, requests=tuple(timelines))
