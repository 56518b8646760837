"""Measuring: every way to decode, on the same prompts, in an order that favours none."""

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.terminal.results import Collector
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.throughput.observed import Observe, unobserved
from specgate_lab.throughput.samples import Sample
from specgate_lab.throughput.traffic import Traffic

WARM_UP_TOKENS = 16

Decode = Callable[[GenerationRequest], Awaitable[Sample]]
"""Decodes one request in one way, and tells how long it took. The caller fills in prompt and repeat."""


class Turn(NamedTuple):
    """One measurement that is to be made."""

    prompt: int
    name: str


def turns(names: Sequence[str], num_prompts: int, repeat: int) -> Iterator[Turn]:
    """Yield every row for every prompt once; who comes first moves on from prompt to prompt and repeat to repeat.

    So that a machine that grows slower, or a neighbour that wakes up, hits all rows alike.
    """
    for prompt in range(num_prompts):
        first = (repeat + prompt) % len(names)
        for name in (*names[first:], *names[:first]):
            yield Turn(prompt, name)


async def measure(
    ways: Mapping[str, Decode],
    requests: Sequence[GenerationRequest],
    repeats: int,
    on_turn: Callable[[], None],
    budget_s: float = math.inf,
) -> dict[str, list[Sample]]:
    """Return the samples of every row. A short run of each way goes before and is thrown away.

    Once ``budget_s`` have passed no further repeat is begun, so that all rows have equally many.
    """
    start_s = time.perf_counter()
    for decode in ways.values():
        await decode(replace(requests[0], max_tokens=min(WARM_UP_TOKENS, requests[0].max_tokens)))
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for repeat in range(repeats):
        if repeat and time.perf_counter() - start_s > budget_s:
            break
        for prompt, name in turns(tuple(ways), len(requests), repeat):
            sample = await ways[name](requests[prompt])
            samples[name].append(replace(sample, prompt=prompt, repeat=repeat))
            on_turn()
    return samples


def bare_way(loop: BareLoopProcess, schedule: str | None = None) -> Decode:
    """Return the way of a bare loop, or of its assistant with ``schedule``."""

    async def decode(request: GenerationRequest) -> Sample:
        run = await loop.run(request, schedule)
        return Sample(0, 0, run.token_ids, len(run.token_ids) - run.num_first, run.decode_s)

    return decode


def pair_way(
    orchestrator: Orchestrator, like: GenerationRequest, traffic: Traffic, observe: Observe = unobserved
) -> Decode:
    """Return the way through our services, with the γ and the gate of ``like``; nothing else may run meanwhile.

    ``traffic`` counts what all calls of the orchestrator send and receive.
    """

    async def decode(request: GenerationRequest) -> Sample:
        own = replace(request, gamma=like.gamma, gate=like.gate, gate_threshold=like.gate_threshold)
        collector, before = Collector(), traffic.num_bytes
        async with observe() as by, orchestrator.generate(own, by.on_record, by.on_loss) as generation:
            async for delta in generation:
                by.on_delta(delta)
                collector.add(delta, time.perf_counter())
            return Sample.of(collector.result(generation.stats), 0, 0, traffic.num_bytes - before)

    return decode
