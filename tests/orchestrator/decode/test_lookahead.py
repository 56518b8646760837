"""A round is begun as soon as the one before it is committed, whatever the reader does meanwhile."""

import asyncio
from contextlib import aclosing

import pytest

from orchestrator.decode.loop import Rounds, decode
from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from orchestrator.policy.gates import AlwaysDraft, Progress, TargetConfidence
from specgate.errors import ServiceUnavailable
from specgate.types import DraftRequest, Proposal, RoundPlan, Verdict
from tests.orchestrator.decode.support import parties
from tests.support.decoding import emitted, make_spec, target_alone
from tests.support.fakes import FakeDrafter, FakeModel, FakeVerifier, Fault

SPEC, MODEL = make_spec(60), FakeModel()


async def settled() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("policy", [AlwaysDraft(3), TargetConfidence(3, 0.6)])
async def test_the_drafter_knows_every_token_before_the_reader_and_no_round_is_begun_behind_the_end(policy) -> None:
    session, drafter, verifier = parties(SPEC)
    async for _ in decode(session, drafter, verifier, policy):
        if not session.finished:
            assert len(drafter.told) == session.length
            assert drafter.requests[-1].round == session.round
    assert session.finished
    assert session.round == len(verifier.requests)
    assert {request.round for request in drafter.requests} == set(range(1, session.round + 1))


async def test_a_plan_is_made_of_what_is_committed() -> None:
    session, drafter, verifier = parties(SPEC)
    seen = []

    class Watching:
        def plan(self, session: Progress) -> RoundPlan:
            seen.append((session.length, session.confidence))
            return RoundPlan(3)

    expected = [(session.length, None)]
    async for _ in decode(session, drafter, verifier, Watching()):
        expected.append((session.length, session.confidence))
    assert seen == expected[:-1]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_reader_that_leaves_or_is_cancelled_leaves_no_task_behind(is_cancelled: bool) -> None:
    session, drafter, verifier = parties(SPEC, faults={1: Fault.HANG})
    tasks = asyncio.all_tasks()
    async with aclosing(decode(session, drafter, verifier, AlwaysDraft(3))) as deltas:
        await anext(deltas)
        assert len(asyncio.all_tasks()) == len(tasks) + 1
        if is_cancelled:
            reading = asyncio.create_task(anext(deltas))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait((reading,))
            assert reading.cancelled()
            assert asyncio.all_tasks() == tasks
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("waits", [True, False])
async def test_a_drafter_that_fails_is_told_in_its_own_round_and_is_no_noise_if_nobody_came_for_it(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session, drafter, verifier = parties(SPEC, faults={1: Fault.DIE})
    async with aclosing(decode(session, drafter, verifier, AlwaysDraft(3))) as deltas:
        first = await anext(deltas)
        assert emitted([first]) == target_alone(SPEC)[: len(first.token_ids)]
        if waits:
            with pytest.raises(ServiceUnavailable, match="the fake died"):
                await anext(deltas)
        else:
            await asyncio.sleep(0)
    assert not caplog.records


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("draft_s", "reader_s", "round_s"), [(2.0, 5.0, 2.0), (5.0, 2.0, 5.0), (0.0, 3.0, 0.0)])
async def test_a_round_does_not_take_longer_because_its_reader_does(
    draft_s: float, reader_s: float, round_s: float
) -> None:
    """A proposal that lies there while the reader is slow is no part of a round's time; drafting it is."""
    clock = Clock()
    session = Session(SPEC, OutputText(None), clock)
    may_answer = asyncio.Event()

    class Drafting(FakeDrafter):
        async def draft(self, request: DraftRequest) -> Proposal:
            await may_answer.wait()
            return await super().draft(request)

    rounds = Rounds(session, Drafting(SPEC, MODEL), FakeVerifier(SPEC, MODEL), AlwaysDraft(3), clock)
    for number in range(3):
        start_s = clock.now_s
        may_answer.clear()
        await rounds.follow(Verdict(number, token_id=4))
        for moment, event in sorted([(draft_s, "drafted"), (reader_s, "back")]):
            clock.now_s = start_s + moment
            if event == "drafted":
                may_answer.set()
            else:
                waiting = asyncio.create_task(rounds.next())
            await settled()
        _, proposal = await waiting
        session.commit(proposal, Verdict(number + 1, token_id=4))
    assert session.stats.round_us == [round_s * 1e6] * 3


async def test_a_round_behind_one_that_broke_off_begins_when_it_is_asked_for() -> None:
    """The reader was away meanwhile, for nobody knows how long."""
    clock = Clock()
    session = Session(SPEC, OutputText(None), clock)
    rounds = Rounds(session, FakeDrafter(SPEC, MODEL), FakeVerifier(SPEC, MODEL), AlwaysDraft(3), clock)
    for moment_s in (7.0, 90.0):
        clock.now_s = moment_s
        _, proposal = await rounds.next()
        clock.now_s += 2.0
        in_part = Verdict(session.round, token_id=4, last=False)
        session.commit(proposal, in_part)
        await rounds.follow(in_part)
    assert session.stats.round_us == [2e6, 2e6]
