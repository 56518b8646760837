"""Announcements over real gRPC: what is announced is not waited for, and whoever announces nonsense is found out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDrafter
from specgate.errors import InternalError, ServiceUnavailable, SpecgateError
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal, TokenIds
from tests.support.decoding import PROMPT, make_spec, target_alone
from tests.support.fake_services import FakeService, serving
from tests.support.fakes import FakeDrafter
from tests.support.orchestrating import dialing
from tests.support.patience import eventually, patience

SPEC = make_spec(40)
TRUTH = target_alone(SPEC)
START = len(PROMPT)
HIT = DraftRequest(2, START, TRUTH[:3], 2)
NEXT = DraftRequest(3, START + 3, TRUTH[3:6], 2)
ANNOUNCED = Proposal(TRUTH[3:5], from_run_ahead=True, num_prepared=2)


class Holding(FakeDrafter):
    """Keeps the answer to round 2 back until ``let_go`` is set."""

    let_go: asyncio.Event

    async def draft(self, request: DraftRequest) -> Proposal:
        if request.round == 2:
            await self.let_go.wait()
        return await super().draft(request)


def all_accepted(drafter: FakeDrafter, last: Proposal) -> list[Announcement]:
    """What a drafter announces that expects the target to agree, and knows the truth of the next two tokens."""
    told = len(drafter.told) - START
    ids = TRUTH[told : told + len(last) + 1]
    draft_token_ids = TRUTH[told + len(ids) : told + len(ids) + 2]
    return [Announcement(START + told, (AnnouncedProposal(ids, draft_token_ids),), 2)]


@asynccontextmanager
async def announcing(announcements=all_accepted) -> AsyncIterator[tuple[FakeService, GrpcDrafter]]:
    """A drafter that holds round 2 back, after it answered the first round and announced from there."""
    Holding.let_go = asyncio.Event()
    async with serving("drafter", lambda spec: Holding(spec, agreement=1.0)) as service, dialing() as dialer:
        service.announcements = announcements
        drafter = await dialer.open_drafter(Lease(service.endpoint), SPEC)
        assert (await drafter.draft(DraftRequest(1, START, (), 2))).draft_token_ids == TRUTH[:2]
        try:
            yield service, drafter
        finally:
            await drafter.close()


async def late(drafter: GrpcDrafter) -> asyncio.Task[Proposal]:
    """Take what was announced for HIT, and ask for it; the answer does not come before ``let_go``."""
    await eventually(lambda: drafter.announced(HIT) == ANNOUNCED)
    asking = asyncio.create_task(drafter.draft(HIT))
    await asyncio.sleep(0.05)
    assert not asking.done()
    return asking


async def test_what_was_announced_is_what_is_answered() -> None:
    async with announcing() as (service, drafter):
        asking = await late(drafter)
        assert service.sessions[0].num_proposals == 1
        Holding.let_go.set()
        assert (await asking).draft_token_ids == TRUTH[3:5]
        following = DraftRequest(3, START + 3, TRUTH[3:6], 4)
        assert drafter.announced(following) is None
        assert (await drafter.draft(following)).draft_token_ids == TRUTH[6:10]
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:6]]


async def test_what_is_further_ahead_is_told_of_when_it_comes_true() -> None:
    far = Announcement(START, (AnnouncedProposal(TRUTH[:6], TRUTH[6:8]),), 2)
    heard: list[TokenIds] = []
    async with announcing(lambda drafter, last: [*all_accepted(drafter, last), far]) as (_, drafter):
        drafter.listen(lambda: heard.extend(drafter.expected(START + 3)))
        await asyncio.sleep(0.1)
        assert not heard
        asking = await late(drafter)
        assert heard == [TRUTH[3:6]]
        # Before the drafter has answered what it stands behind.
        assert drafter.announced(NEXT) == Proposal(TRUTH[6:8], from_run_ahead=True, num_prepared=2)
        Holding.let_go.set()
        assert (await asking).draft_token_ids == TRUTH[3:5]
        assert drafter.announced(NEXT) is not None


async def test_what_counts_is_what_was_answered() -> None:
    """The drafter lost what it had announced, and drafted something else."""
    async with announcing() as (service, drafter):
        service.sessions[0].agreement = 0.0
        asking = await late(drafter)
        Holding.let_go.set()
        assert (await asking).draft_token_ids != TRUTH[3:5]
        await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], 0))
        await drafter.draft(DraftRequest(4, START + 6, (), 1))
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:6]]


async def test_a_drafter_that_dies_after_it_announced() -> None:
    async with announcing() as (service, drafter):
        asking = await late(drafter)
        await service.stop()
        with pytest.raises(ServiceUnavailable):
            await asking
        for gamma in (0, 2):
            with pytest.raises(ServiceUnavailable):
                await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], gamma))


async def test_an_answer_that_nobody_waits_for_any_longer() -> None:
    async with announcing() as (_, drafter):
        asking = await late(drafter)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(SpecgateError):
            await drafter.draft(NEXT)


async def test_closed_while_it_waits() -> None:
    """To the task that waits it is a failure, at once."""
    async with announcing() as (service, drafter):
        asking = await late(drafter)
        await drafter.close()
        async with patience():
            with pytest.raises(ServiceUnavailable):
                await asking
        await eventually(lambda: not service.num_open)


ONE = AnnouncedProposal((1,), (1,))


@pytest.mark.parametrize(
    ("announcements", "num_answers", "problem"),
    [
        ([Announcement(START, (ONE._replace(token_ids=()),), 1)], 1, "num_committed: 0 is"),
        ([Announcement(START, (ONE._replace(draft_token_ids=()),), 1)], 1, "num_draft_tokens: 0 is"),
        ([Announcement(START, (ONE._replace(draft_token_ids=(1,) * 65),), 1)], 1, "num_draft_tokens: 65 is"),
        ([Announcement(START, (ONE,), 1)] * 3, 1, "more than 2 times a round"),
        ([], 3, "more than it was asked"),
    ],
    ids=["behind nothing", "empty", "too long", "too often", "answers nobody asked for"],
)
async def test_nonsense_is_named(announcements: list[Announcement], num_answers: int, problem: str) -> None:
    async with serving("drafter") as service, dialing() as dialer:
        service.announcements, service.num_answers = lambda drafter, last: announcements, num_answers
        drafter = await dialer.open_drafter(Lease(service.endpoint), SPEC)
        await drafter.draft(DraftRequest(1, START, (), 2))
        await asyncio.sleep(0.1)
        with pytest.raises(InternalError, match=problem):
            _ = drafter.announced(HIT) or await drafter.draft(HIT)
        await drafter.close()
