"""When requests are sent: as soon as a client is free (closed loop), or when they are due (open loop)."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from orchestrator.decode.request import GenerationRequest
from specgate_lab.timeline import Clock, RequestTimeline

T = TypeVar("T")

Send = Callable[[GenerationRequest, float], Awaitable[RequestTimeline]]
"""Runs one request that is due at a time on the clock."""


def poisson_arrivals(rate_per_s: float, num_requests: int, seed: int) -> tuple[float, ...]:
    """Return when each request is due, in seconds from the start; the gaps are exponential with mean 1 / rate."""
    draw = random.Random(seed)
    return tuple(accumulate(draw.expovariate(rate_per_s) for _ in range(num_requests)))


async def closed_loop(
    send: Send, requests: Sequence[GenerationRequest], num_clients: int, clock: Clock = time.perf_counter
) -> list[RequestTimeline]:
    """Send all requests by ``num_clients`` clients, each of which sends its next when its last is done.

    A request is due when its client is free. The timelines are in the order of the requests.
    """
    todo, timelines = iter(enumerate(requests)), dict[int, RequestTimeline]()

    async def client() -> None:
        for index, request in todo:
            timelines[index] = await send(request, clock())

    await all_of(client() for _ in range(num_clients))
    return [timelines[index] for index in range(len(requests))]


async def open_loop(
    send: Send, requests: Sequence[GenerationRequest], due_s: Sequence[float], clock: Clock = time.perf_counter
) -> list[RequestTimeline]:
    """Send each request when it is due, ``due_s`` seconds from now, however many still run."""
    start_s = clock()

    async def one(request: GenerationRequest, at_s: float) -> RequestTimeline:
        await asyncio.sleep(start_s + at_s - clock())
        return await send(request, start_s + at_s)

    return await all_of(one(request, at_s) for request, at_s in zip(requests, due_s, strict=True))


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
