"""Long work in short steps."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from orchestrator.policy.auto.cooperative_steps import at_once, between_events
from orchestrator.policy.auto.learner import Learner
from tests.orchestrator.policy.auto.support import REQUEST, Progress, a_round, taught


def work(log: list[str], num_steps: int = 3) -> Iterator[None]:
    for step in range(num_steps):
        log.append(f"step {step}")
        yield
    log.append("end")


def test_at_once() -> None:
    log: list[str] = []
    at_once(work(log))
    assert log == ["step 0", "step 1", "step 2", "end"]


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
    learner = Learner(between_events)
    taught(*[a_round(gamma, gamma, before=0.99) for gamma in (3, 1, 5, 2, 8, 4)] * 20, learner=learner)
    policy = learner.policy(REQUEST)
    first = [policy.plan(Progress(0.99)) for _ in range(3)]
    assert not any(plan.chosen for plan in first)
    for _ in range(100):
        await asyncio.sleep(0.01)
        if policy.plan(Progress(0.99)).chosen:
            return
    pytest.fail("no table")


def test_a_search_that_fails_is_not_the_last_one() -> None:
    class Failing(Exception):
        pass

    def fail(steps: Iterator[None]) -> None:
        next(steps)
        raise Failing

    seen = [a_round(gamma, gamma) for gamma in (3, 1, 5, 2, 8, 4)] * 20
    learner = taught(*seen, learner=Learner(fail))
    policy = learner.policy(REQUEST)
    with pytest.raises(Failing):
        policy.plan(Progress(0.99))
    learner._pace = at_once
    assert policy.plan(Progress(0.99)).chosen
