"""Levels of load, each a case that speculation off and on run in turns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from specgate_lab.arrivals import closed_loop, open_loop, poisson_arrivals
from specgate_lab.experiment import Sample, Samples, Variant, measure
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.timeline import RequestTimeline, Start, time_request
from specgate_lab.variants import WARM_UP_TOKENS

REQUESTS_A_CLIENT = 3
MIN_CLOSED_REQUESTS = 8
OPEN_S = 10.0
MIN_OPEN_REQUESTS = 32
WARM_UP_CLIENTS = 4
ARRIVAL_SEED = 0


class Speculation(StrEnum):
    """Whether the draft is asked."""

    OFF = "off"
    ON = "on"

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request as this mode sends it."""
        return request if self is Speculation.ON else TARGET_ALONE.of(request)


class Sweep(StrEnum):
    """What a level counts: clients of a closed loop, or requests per second of an open one."""

    CONCURRENCY = "concurrency"
    RATE = "rate"


class Level(NamedTuple):
    """One level of load."""

    sweep: Sweep
    value: float

    @property
    def num_requests(self) -> int:
        """The default size of one measurement: three requests a client, or those of ten seconds."""
        if self.sweep is Sweep.CONCURRENCY:
            return max(MIN_CLOSED_REQUESTS, REQUESTS_A_CLIENT * int(self.value))
        return max(MIN_OPEN_REQUESTS, math.ceil(OPEN_S * self.value))

    async def run(self, start: Start, requests: Sequence[GenerationRequest]) -> list[RequestTimeline]:
        """Send the requests; arrivals at a rate are the same in every measurement.

        Raises:
            SpecgateError: the error of the first request where all broke off.
        """
        send = partial(time_request, start)
        if self.sweep is Sweep.CONCURRENCY:
            timelines = await closed_loop(send, requests, int(self.value))
        else:
            timelines = await open_loop(send, requests, poisson_arrivals(self.value, len(requests), ARRIVAL_SEED))
        first = min(timelines, key=lambda one: one.due_s)
        if all(one.error for one in timelines):
            first.whole()
        return timelines


class LevelRun(NamedTuple):
    """A level, and the requests that are sent at it."""

    level: Level
    requests: Sequence[GenerationRequest]


async def measure_levels(
    start: Start,
    requests: Sequence[GenerationRequest],
    levels: Sequence[Level],
    repeats: int,
    num_requests: int | None = None,
    on_turn: Callable[[], None] = lambda: None,
) -> Samples:
    """Run all levels in both modes, in turns; return the samples by mode. A case is a level.

    Args:
        requests: taken in order and from the start again, the same ones for both modes of a level.
        num_requests: of one measurement; None leaves it to the level.

    Raises:
        SpecgateError: all requests of a measurement broke off; it is the first one's error.
    """
    cases = [LevelRun(one, list(islice(cycle(requests), num_requests or one.num_requests))) for one in levels]
    short = [replace(one, max_tokens=min(one.max_tokens, WARM_UP_TOKENS)) for one in requests[:WARM_UP_CLIENTS]]
    warm_up = [LevelRun(Level(Sweep.CONCURRENCY, WARM_UP_CLIENTS), short)]
    variants = {str(mode): _variant(start, mode) for mode in Speculation}
    return await measure(variants, cases, repeats, on_turn, warm_up=warm_up)


def _variant(start: Start, mode: Speculation) -> Variant[LevelRun]:
    async def run(case: LevelRun) -> Sample:
        return load_sample(await case.level.run(start, [mode.of(request) for request in case.requests]))

    return run


def load_sample(requests: Sequence[RequestTimeline]) -> Sample:
    """Return all tokens over the busy span: from when the first request was due to the last delta of all."""
    done = [one for one in requests if one.error is None and one.arrivals]
    busy_s = max((one.arrivals[-1].at_s for one in done), default=0.0) - min((one.due_s for one in done), default=0.0)
    return Sample(sum(one.num_tokens for one in done), busy_s, requests=tuple(requests))
