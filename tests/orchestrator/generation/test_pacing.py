"""A search for a table in short steps, between which other things happen."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from orchestrator.policy.auto.cooperative_steps import at_once, between_events
from orchestrator.policy.auto.learner import Learner
from tests.orchestrator.policy.auto.support import GAMMAS, REQUEST, SURE, Progress, a_round, taught

SEEN = [a_round(gamma, gamma, before=SURE) for gamma in GAMMAS * 20]


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
    policy = taught(*SEEN, learner=Learner(between_events)).policy(REQUEST)
    assert not any(policy.plan(Progress(SURE)).chosen for _ in range(3))
    async with asyncio.timeout(5):
        while not policy.plan(Progress(SURE)).chosen:  # noqa: ASYNC110 - there is nothing that could tell us
            await asyncio.sleep(0.01)


def test_a_search_that_fails_is_not_the_last_one() -> None:
    def fail_once(steps: Iterator[None]) -> None:
        failures.append(next(steps))
        if len(failures) == 1:
            raise ZeroDivisionError
        at_once(steps)

    failures: list[None] = []
    policy = taught(*SEEN, learner=Learner(fail_once)).policy(REQUEST)
    with pytest.raises(ZeroDivisionError):
        policy.plan(Progress(SURE))
    assert policy.plan(Progress(SURE)).chosen
