"""A search for a better choice in short steps, between which other things happen."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

from orchestrator.generation.orchestrator import between_events
from orchestrator.policy.auto.learner import Learner
from tests.orchestrator.policy.auto.support import REQUEST, SURE, THERE, Progress, a_round, an_observer, measured


def work(log: list[str]) -> Iterator[None]:
    for step in range(3):
        log.append(f"step {step}")
        yield
    log.append("end")


async def test_events_come_between_steps() -> None:
    log: list[str] = []
    between_events(work(log))
    assert log == []
    async with asyncio.timeout(5):
        while "end" not in log:
            log.append("event")
            await asyncio.sleep(0)
    steps = [log.index(f"step {step}") for step in range(3)]
    assert all("event" in log[early:late] for early, late in pairwise(steps))


async def test_what_is_searched_for_is_used_once_it_is_found() -> None:
    learner = Learner(measured, between_events)
    policy, observer = learner.policy(REQUEST, THERE), an_observer(learner)
    gamma = policy.plan(Progress(SURE)).gamma
    for _ in range(60):
        observer(a_round(gamma, 0))
    assert policy.plan(Progress(SURE)).gamma == gamma
    async with asyncio.timeout(5):
        while policy.plan(Progress(SURE)).gamma == gamma:  # noqa: ASYNC110 - there is nothing that could tell us
            await asyncio.sleep(0.01)
