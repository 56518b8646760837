"""Announcements over real gRPC: what is announced is not waited for, and whoever announces nonsense is found out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.drafter_link import GrpcDrafter
from orchestrator.fakes import FakeDrafter
from orchestrator.links import GrpcDialer
from orchestrator.ports import Lease
from orchestrator.streams import ChannelCache
from specgate.errors import InternalError, ServiceUnavailable, SpecgateError
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal
from tests.orchestrator.fake_services import FakeService, serving
from tests.orchestrator.support import PROMPT, make_spec, target_alone

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
            while drafter._announced._latest is None and not drafter._listening.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        try:
            yield service, drafter
        finally:
            await drafter.close()
            await channels.close()


async def test_what_was_announced_is_not_waited_for() -> None:
    async with announcing() as (service, drafter):
        proposal = await drafter.draft(HIT)
        assert proposal == Proposal(TRUTH[3:5], from_run_ahead=True)
        assert service.sessions[0].num_proposals == 1
        Holding.let_go.set()
        # The next round waits for the answer to this one, and says what was accepted of it.
        following = await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], 4))
        assert following.draft_token_ids == TRUTH[6:10]
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:6]]


async def test_what_counts_is_what_was_answered() -> None:
    """The drafter lost what it had announced, and drafted something else."""
    async with announcing() as (service, drafter):
        service.sessions[0].agreement = 0.0
        assert (await drafter.draft(HIT)).draft_token_ids == TRUTH[3:5]
        Holding.let_go.set()
        await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], 0))
        await drafter.draft(DraftRequest(4, START + 6, (), 1))
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:6]]


async def test_another_outcome_is_asked_for() -> None:
    async with announcing() as (service, drafter):
        Holding.let_go.set()
        proposal = await drafter.draft(DraftRequest(2, START, (*TRUTH[:2], 90), 2))
        assert not proposal.from_run_ahead
        assert service.sessions[0].told == [*PROMPT, *TRUTH[:2], 90]


@pytest.mark.parametrize("gamma", [0, 2])
async def test_a_drafter_that_dies_after_it_announced(gamma: int) -> None:
    async with announcing() as (service, drafter):
        await drafter.draft(HIT)
        await service.stop()
        with pytest.raises(SpecgateError):
            await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], gamma))


async def test_the_late_answer_is_waited_for_no_longer_than_the_caller_wants() -> None:
    async with announcing() as (_, drafter):
        await drafter.draft(HIT)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await drafter.draft(DraftRequest(3, START + 3, TRUTH[3:6], 2))
        with pytest.raises(SpecgateError):
            await drafter.draft(DraftRequest(4, START + 6, (), 2))


async def test_closed_before_the_late_answer() -> None:
    async with announcing() as (service, drafter):
        await drafter.draft(HIT)
        await drafter.close()
        async with asyncio.timeout(30):
            while service.num_open:  # noqa: ASYNC110 - a plain counter
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "announcement",
    [
        Announcement(START, (AnnouncedProposal(3, 1, (1,)),)),
        Announcement(START, (AnnouncedProposal(0, 1, ()),)),
        Announcement(START, (AnnouncedProposal(0, 1, (1,) * 65),)),
    ],
    ids=["accepts too many", "empty", "too long"],
)
async def test_a_nonsense_announcement(announcement: Announcement) -> None:
    async with announcing(lambda drafter, last: [announcement]) as (_, drafter):
        with pytest.raises(SpecgateError):
            await drafter.draft(HIT)


async def test_an_answer_that_nobody_asked_for() -> None:
    channels = ChannelCache()
    async with serving("drafter") as service:
        service.num_answers = 3
        drafter = await GrpcDialer(channels, open_timeout_s=30.0).open_drafter(Lease(service.endpoint), SPEC)

        async def ask_on() -> None:
            for number in range(1, 4):
                await drafter.draft(DraftRequest(number, START, (), 2))

        with pytest.raises((InternalError, ServiceUnavailable)):
            await ask_on()
        await drafter.close()
    await channels.close()
