"""Measuring every level of load, on the same services in the same run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

from orchestrator.decode.request import GenerationRequest
from specgate_lab.arrivals import closed_loop, open_loop, poisson_arrivals
from specgate_lab.load.levels import Level, Speculation, Sweep, turns
from specgate_lab.timeline import RequestTimeline, Start, trace

WARM_UP_TOKENS = 16
WARM_UP_CLIENTS = 4
ARRIVAL_SEED = 0

Runs = Mapping[tuple[Level, Speculation], Sequence[Sequence[RequestTimeline]]]
"""The traces of each level and mode, one list a repeat."""


async def measure(
    start: Start,
    requests: Sequence[GenerationRequest],
    levels: Sequence[Level],
    repeats: int,
    num_requests: int | None = None,
    on_turn: Callable[[], None] = lambda: None,
) -> Runs:
    """Run all levels in both modes, in turns. A short run of each mode goes before and is thrown away.

    Args:
        requests: taken in order and from the start again, so that both modes of a level get the same ones.
        num_requests: of one measurement; None leaves it to the level.

    Raises:
        SpecgateError: what the first request answered where not one of a measurement came through.
    """
    short = [replace(one, max_tokens=min(one.max_tokens, WARM_UP_TOKENS)) for one in requests[:WARM_UP_CLIENTS]]
    for mode in Speculation:
        await run_level(start, [mode.of(one) for one in short], Level(Sweep.CONCURRENCY, WARM_UP_CLIENTS))
    runs: dict[tuple[Level, Speculation], list[Sequence[RequestTimeline]]] = {
        (level, mode): [] for level in levels for mode in Speculation
    }
    for _, level, mode in turns(levels, repeats):
        taken = islice(cycle(requests), num_requests or level.num_requests)
        runs[level, mode].append(await run_level(start, [mode.of(one) for one in taken], level))
        on_turn()
    return runs


async def run_level(start: Start, requests: Sequence[GenerationRequest], level: Level) -> list[RequestTimeline]:
    """Run one measurement. Arrivals at a rate are the same in every one. Raises as ``measure`` does."""
    send = partial(trace, start)
    if level.sweep is Sweep.CONCURRENCY:
        traces = await closed_loop(send, requests, int(level.value))
    else:
        due_s = poisson_arrivals(level.value, len(requests), ARRIVAL_SEED)
        traces = await open_loop(send, requests, due_s)
    first = min(traces, key=lambda one: one.due_s)
    if first.error is not None and all(one.error for one in traces):
        raise first.error
    return traces
