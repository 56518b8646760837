"""One case measured: all choices in turns, block by block, on the same services."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import between_events
from orchestrator.policy.auto.costs import MeasuredCosts
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import Gate
from specgate_lab.arrivals import closed_loop
from specgate_lab.gates.cases import AUTO, Case, GateChoice, requests_of, turns
from specgate_lab.gates.ratios import Block, RateRatio, rate, ratio
from specgate_lab.gates.tally import CountingLearner
from specgate_lab.replay.compare import ALONE
from specgate_lab.timeline import Clock, RequestTimeline, TimedGeneration, time_request


class Starter(Protocol):
    """What starts generations, and the learner that they teach."""

    learner: Learner

    def measured_costs(self) -> MeasuredCosts: ...

    def generate(self, request: GenerationRequest) -> TimedGeneration: ...


@dataclass(slots=True)
class CaseResult:
    """What a case came to: the blocks of each choice, in the same order."""

    case: Case
    blocks: dict[str, list[Block]]
    tally: CountingLearner = field(default_factory=CountingLearner)
    num_survived: int = 0
    """Services that were lost, or too slow to answer, in blocks that were measured: these are no rates."""
    auto_proposed: int = 0
    """Draft tokens that ``auto`` got."""

    @property
    def rates(self) -> dict[str, float]:
        return {name: rate(blocks) for name, blocks in self.blocks.items()}

    @property
    def best_fixed(self) -> str:
        rates = self.rates
        return max((name for name in rates if name != AUTO), key=rates.__getitem__)

    def add(self, choice: GateChoice, traces: Sequence[RequestTimeline], start_s: float) -> None:
        """Take a block in, whose first request was sent at ``start_s``.

        Raises:
            SpecgateError: one of its requests broke off.
        """
        for error in (one.error for one in traces if one.error is not None):
            raise error
        # Until a client has nothing left to ask for: from then on there are fewer than the case says.
        end_s = sorted(one.arrivals[-1].at_s for one in traces)[-self.case.concurrency]
        arrivals = (arrival for one in traces for arrival in one.arrivals if arrival.at_s <= end_s)
        self.blocks[choice.name].append(Block(sum(arrival.num_tokens for arrival in arrivals), end_s - start_s))
        self.num_survived += sum(one.stats.failures_survived for one in traces)
        if choice.gate is Gate.AUTO:
            outcomes = sum((one.stats.outcomes for one in traces), Counter[tuple[int, int]]())
            self.auto_proposed += sum(proposed * count for (proposed, _), count in outcomes.items())

    def auto_to(self, name: str) -> RateRatio:
        """Return the ratio of ``auto`` to another choice."""
        return ratio(self.blocks[AUTO], self.blocks[name])

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            **self.case._asdict(),
            "rates": self.rates,
            "best_fixed": self.best_fixed,
            "auto_to_best": self.auto_to(self.best_fixed)._asdict(),
            "auto_to_alone": self.auto_to(ALONE)._asdict(),
            "auto_proposed": self.auto_proposed,
            "failures_survived": self.num_survived,
            "survival": self.tally.to_object(),
            "blocks": {name: [block._asdict() for block in blocks] for name, blocks in self.blocks.items()},
        }


async def measure_case(
    starter: Starter,
    case: Case,
    choices: Sequence[GateChoice],
    prompts: Sequence[GenerationRequest],
    num_blocks: int,
    num_warm_up: int,
    on_block: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> CaseResult:
    """Measure ``num_blocks`` blocks of every choice. ``auto`` begins with nothing learned, but has a warm-up.

    A warm-up is numbered after what is measured, so that its seeds differ, and run before it; its times are thrown
    away, not what ``auto`` learned. (Greedy a seed changes nothing: there its texts come again, as prompts do.)

    Raises:
        SpecgateError: a request broke off.
    """
    outcome = CaseResult(case, {choice.name: [] for choice in choices})
    learner = Learner(starter.measured_costs, between_events)
    for number, choice in turns(choices, num_blocks, num_warm_up):
        requests = requests_of(case, prompts, number % (num_blocks + num_warm_up))
        starter.learner = learner if choice.gate is Gate.AUTO else outcome.tally
        start_s = clock()
        send = partial(time_request, starter.generate, clock=clock)
        traces = await closed_loop(send, [choice.of(request) for request in requests], case.concurrency, clock)
        if number >= 0:
            outcome.add(choice, traces, start_s)
        on_block()
    return outcome
