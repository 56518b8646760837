"""Announcements over real gRPC: what is announced is not waited for, and whoever announces nonsense is found out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.drafter_link import GrpcDrafter
from orchestrator.services.links import GrpcDialer
from orchestrator.services.streams import ChannelCache
from specgate.errors import InternalError, ServiceUnavailable, SpecgateError
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal
from tests.support.decoding import PROMPT, make_spec, target_alone
from tests.support.fake_services import FakeService, serving
from tests.support.fakes import FakeDrafter

SPEC = make_spec(40)
TRUTH = target_alone(SPEC)
START = len(PROMPT)
HIT = DraftRequest(2, START, TRUTH[:3], 2)


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
    return [Announcement(START + told, (AnnouncedProposal(len(last), ids[-1], draft_token_ids),))]


@asynccontextmanager
async def announcing(announcements=all_accepted) -> AsyncIterator[tuple[FakeService, GrpcDrafter]]:
    """A drafter that holds round 2 back, after the first round was answered and announced from."""
    Holding.let_go = asyncio.Event()
    channels = ChannelCache()
    async with serving("drafter", lambda spec: Holding(spec, agreement=1.0)) as service:
        service.announcements = announcements
        drafter = await GrpcDialer(channels, open_timeout_s=30.0).open_drafter(Lease(service.endpoint), SPEC)
        assert (await drafter.draft(DraftRequest(1, START, (), 2))).draft_token_ids == TRUTH[:2]
        async with asyncio.timeout(30):
            while not drafter._announced._chain and not drafter._listening.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        try:
            yield service, drafter
        finally:
            await drafter.close()
            await channels.close()


async def late(drafter: GrpcDrafter) -> asyncio.Task[Proposal]:
    """Take what was announced for HIT, and ask for it; the answer does not come before ``let_go``."""
    assert drafter.announced(HIT) == Proposal(TRUTH[3:5], from_run_ahead=True, num_prepared=2)
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
    far = Announcement(START + 3, (AnnouncedProposal(2, TRUTH[5], TRUTH[6:8]),), further=True, number=1)
    heard: list[Announcement] = []
    async with announcing(lambda drafter, last: [*all_accepted(drafter, last), far]) as (_, drafter):
        drafter.listen(heard.append)
        async with asyncio.timeout(30):
            while len(drafter._announced._chain) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert far not in heard
        asking = await late(drafter)
        assert heard[-1] == far
        following = DraftRequest(3, START + 3, TRUTH[3:6], 2)
        # Before the drafter has answered what it stands behind.
        assert drafter.announced(following) == Proposal(TRUTH[6:8], from_run_ahead=True, num_prepared=2)
        Holding.let_go.set()
        assert (await asking).draft_token_ids == TRUTH[3:5]
        assert drafter.announced(following) is not None


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


async def test_another_outcome_was_not_announced() -> None:
    async with announcing() as (service, drafter):
        Holding.let_go.set()
        other = DraftRequest(2, START, (*TRUTH[:2], 90), 2)
        assert drafter.announced(other) is None
        await drafter.draft(other)
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:2], 90]


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
            await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], 2))


async def test_closed_while_it_waits() -> None:
    """To the task that waits it is a failure, at once."""
    async with announcing() as (service, drafter):
        asking = await late(drafter)
        await drafter.close()
        async with asyncio.timeout(5):
            with pytest.raises(ServiceUnavailable):
                await asking
        async with asyncio.timeout(30):
            while service.num_open:  # noqa: ASYNC110 - a plain counter
                await asyncio.sleep(0.005)


async def ask(drafter: GrpcDrafter) -> Proposal:
    return drafter.announced(HIT) or await drafter.draft(HIT)


ONE = AnnouncedProposal(0, 1, (1,))


@pytest.mark.parametrize(
    ("announcements", "problem"),
    [
        ([Announcement(START, (AnnouncedProposal(3, 1, (1,)),))], "3 of 2"),
        ([Announcement(START, (AnnouncedProposal(0, 1, ()),))], r"token_ids \(length\): 1 is"),
        ([Announcement(START, (AnnouncedProposal(0, 1, (1,) * 65),))], r"token_ids \(length\): 66 is"),
        ([Announcement(START, (ONE,))] * 3, "more than 2 times a round"),
    ],
    ids=["accepts too many", "empty", "too long", "too often"],
)
async def test_nonsense_is_named(announcements: list[Announcement], problem: str) -> None:
    async with announcing(lambda drafter, last: announcements) as (_, drafter):
        await asyncio.sleep(0.1)
        with pytest.raises(InternalError, match=problem):
            await ask(drafter)


async def test_an_answer_that_nobody_asked_for() -> None:
    channels = ChannelCache()
    async with serving("drafter") as service:
        service.num_answers = 3
        drafter = await GrpcDialer(channels, open_timeout_s=30.0).open_drafter(Lease(service.endpoint), SPEC)
        await drafter.draft(DraftRequest(1, START, (), 2))
        await asyncio.sleep(0.1)
        with pytest.raises(InternalError, match="more than it was asked"):
            await drafter.draft(DraftRequest(2, START, (), 2))
        await drafter.close()
    await channels.close()
