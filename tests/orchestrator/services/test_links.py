"""The adapters against real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.drafter_link import GrpcDrafter
from orchestrator.services.links import GrpcDialer, GrpcVerifier
from orchestrator.services.streams import ChannelCache
from specgate.errors import (
    InternalError,
    InvalidArgument,
    LeaseRefused,
    OutOfSync,
    ServiceUnavailable,
    SpecgateError,
    TooManySessions,
)
from specgate.types import ALWAYS_SOLO, DraftRequest, FollowUp, FollowUps, Proposal, VerifyRequest
from tests.support.decoding import PROMPT, make_spec, target_alone
from tests.support.fake_services import FakeService, serving, silent, unused_endpoint
from tests.support.fakes import FakeDrafter, FakeVerifier

SPEC = make_spec(20)


@pytest.fixture
async def dialer() -> AsyncIterator[GrpcDialer]:
    channels = ChannelCache()
    yield GrpcDialer(channels, open_timeout_s=30.0)
    await channels.close()


@asynccontextmanager
async def drafting(dialer: GrpcDialer) -> AsyncIterator[tuple[FakeService, GrpcDrafter]]:
    async with serving("drafter", lambda spec: FakeDrafter(spec, agreement=1.0)) as service:
        yield service, await dialer.open_drafter(Lease(service.endpoint), SPEC)


@asynccontextmanager
async def verifying(dialer: GrpcDialer) -> AsyncIterator[tuple[FakeService, GrpcVerifier]]:
    async with serving("verifier") as service:
        yield service, await dialer.open_verifier(Lease(service.endpoint), SPEC)


async def eventually_free(service: FakeService) -> None:
    await eventually(lambda: not service.num_open)


async def eventually(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_drafter(dialer: GrpcDialer) -> None:
    truth = target_alone(SPEC)
    async with drafting(dialer) as (service, drafter):
        proposal = await drafter.draft(DraftRequest(1, 3, (), 4))
        assert proposal.draft_token_ids == truth[:4]
        assert proposal.draft_us == 50
        # Two were accepted, then a token of the target's own, then a solo token.
        await drafter.draft(DraftRequest(1, 3, (*truth[:2], 90), 0))
        await drafter.draft(DraftRequest(2, 6, (91,), 2))
        assert service.sessions[0].told == [*PROMPT, *truth[:2], 90, 91]
        await drafter.close()
        await drafter.close()
        await eventually_free(service)


async def test_accepted_tokens_are_not_sent_again(dialer: GrpcDialer) -> None:
    truth, sent = target_alone(SPEC), []
    async with drafting(dialer) as (_, drafter):
        write = drafter._stream.write

        async def spy(message) -> None:
            sent.append(message.round)
            await write(message)

        drafter._stream.write = spy  # type: ignore[method-assign]
        await drafter.draft(DraftRequest(1, 3, (), 4))
        await drafter.draft(DraftRequest(2, 3, (*truth[:4], 90), 4))
        proposal = await drafter.draft(DraftRequest(3, 8, (91,), 4))
        # Once something else was said, the proposal is gone: its tokens are new ones.
        await drafter.draft(DraftRequest(4, 9, (), 0))
        await drafter.draft(DraftRequest(5, 9, proposal.draft_token_ids[:2], 0))
    assert [(one.position, one.num_accepted, list(one.token_ids)) for one in sent] == [
        (3, 0, []),
        (3, 4, [90]),
        (8, 0, [91]),
        (9, 0, []),
        (9, 0, list(proposal.draft_token_ids[:2])),
    ]


async def test_verifier(dialer: GrpcDialer) -> None:
    truth = target_alone(SPEC)
    async with verifying(dialer) as (service, verifier):
        request = VerifyRequest(1, 3, Proposal((*truth[:2], 96)), 0.0, 0)
        (verdict,) = [verdict async for verdict in verifier.verify(request)]
        assert (verdict.num_accepted, verdict.token_id, verdict.last) == (2, truth[2], True)
        solo = [one async for one in verifier.verify(VerifyRequest(2, 6, Proposal(), ALWAYS_SOLO, 4))]
        assert tuple(one.token_id for one in solo) == truth[3:8]
        assert [one.last for one in solo] == [False] * 4 + [True]
        await verifier.close()
        await eventually_free(service)


async def test_a_round_that_the_verifier_went_on_with_is_read_and_not_sent(dialer: GrpcDialer) -> None:
    truth = target_alone(SPEC)
    async with verifying(dialer) as (service, verifier):
        follow_ups = FollowUps(2, 3, (FollowUp(1, 96, (5,)), FollowUp(2, truth[2], truth[3:5], 0.0)), ALWAYS_SOLO, 1)
        verifier.expect(follow_ups)
        await eventually(lambda: service.sessions and service.sessions[0].expected == follow_ups)
        first = await collect(verifier, VerifyRequest(1, 3, Proposal(truth[:2])))
        assert [one.follow_up for one in first] == [2]
        second = await collect(verifier, VerifyRequest(2, 6, Proposal(truth[3:5]), ALWAYS_SOLO, 1))
        assert [(one.num_accepted, one.token_id, one.solo) for one in second] == [
            (2, truth[5], False),
            (0, truth[6], True),
        ]
        # The next one is asked for again.
        (third,) = await collect(verifier, VerifyRequest(3, 10, Proposal(truth[7:8])))
        assert (third.num_accepted, third.token_id) == (1, truth[8])
        assert [request.round for request in service.sessions[0].requests] == [1, 2, 3]
        await verifier.close()
        await eventually_free(service)


async def test_follow_ups_of_a_session_that_is_over_bother_nobody(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (service, verifier):
        verifier.expect(FollowUps(2, 3, ()))
        await verifier.close()
        verifier.expect(FollowUps(2, 3, ()))
        await verifier.close()
        await eventually_free(service)


@pytest.mark.parametrize(
    "refusal", [TooManySessions("full"), InvalidArgument("seed", "no"), LeaseRefused("spent")], ids=str
)
async def test_refusal_keeps_its_class(dialer: GrpcDialer, refusal: SpecgateError) -> None:
    async with serving("verifier") as service:
        service.refusal = refusal
        with pytest.raises(type(refusal), match=str(refusal)):
            await dialer.open_verifier(Lease(service.endpoint), SPEC)


async def test_lease_token_is_sent(dialer: GrpcDialer) -> None:
    async with serving("verifier") as service:
        verifier = await dialer.open_verifier(Lease(service.endpoint, "secret"), SPEC)
        assert service.sessions[0].spec.lease_token == "secret"
        await verifier.close()


async def test_nobody_there(dialer: GrpcDialer) -> None:
    with pytest.raises(ServiceUnavailable):
        await dialer.open_drafter(Lease(unused_endpoint()), SPEC)


async def test_stopped_process(dialer: GrpcDialer) -> None:
    dialer._open_timeout_s = 0.3
    with silent() as endpoint:
        start = asyncio.get_running_loop().time()
        with pytest.raises(ServiceUnavailable):
            await dialer.open_verifier(Lease(endpoint), SPEC)
        assert asyncio.get_running_loop().time() - start < 10.0


async def test_service_that_dies_in_mid_session(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (service, verifier):
        await service.stop()
        with pytest.raises(ServiceUnavailable):
            await collect(verifier, VerifyRequest(1, 3, Proposal()))
        with pytest.raises(SpecgateError):
            await collect(verifier, VerifyRequest(2, 3, Proposal()))


async def collect(verifier: GrpcVerifier, request: VerifyRequest):
    return [verdict async for verdict in verifier.verify(request)]


async def test_error_in_mid_session(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (_, verifier):
        with pytest.raises(OutOfSync):
            await collect(verifier, VerifyRequest(1, 7, Proposal()))
    async with drafting(dialer) as (_, drafter):
        with pytest.raises(OutOfSync):
            await drafter.draft(DraftRequest(1, 7, (), 3))


@pytest.mark.parametrize(
    "change",
    [
        lambda pb: pb.__setattr__("round", 9),
        lambda pb: pb.__setattr__("num_accepted", 1),
        lambda pb: pb.__setattr__("confidence", float("nan")),
    ],
    ids=["round", "num_accepted", "confidence"],
)
async def test_nonsense_of_a_verifier(dialer: GrpcDialer, change) -> None:
    async with verifying(dialer) as (service, verifier):
        service.answer = lambda pb: change(pb) or pb
        with pytest.raises(InternalError, match="nonsense"):
            await collect(verifier, VerifyRequest(1, 3, Proposal()))


@pytest.mark.parametrize(
    "change",
    [
        lambda pb: pb.__setattr__("round", 9),
        lambda pb: pb.proposal.draft_token_ids.append(1),
        lambda pb: pb.ClearField("proposal"),
        lambda pb: pb.proposal.draft_probs.add(),
    ],
    ids=["round", "too_long", "empty", "probs"],
)
async def test_nonsense_of_a_drafter(dialer: GrpcDialer, change) -> None:
    async with drafting(dialer) as (service, drafter):
        service.answer = lambda pb: change(pb) or pb
        with pytest.raises(InternalError, match="nonsense"):
            await drafter.draft(DraftRequest(1, 3, (), 3))


async def test_closed_while_it_waits(dialer: GrpcDialer) -> None:
    """To the task that waits it is a failure, not its own cancellation."""

    class Hanging(FakeVerifier):
        async def verify(self, request):
            await asyncio.Event().wait()
            yield

    async with serving("verifier", Hanging) as service:
        verifier = await dialer.open_verifier(Lease(service.endpoint), SPEC)
        task = asyncio.create_task(collect(verifier, VerifyRequest(1, 3, Proposal())))
        await asyncio.sleep(0.1)
        await verifier.close()
        with pytest.raises(ServiceUnavailable):
            await task
        await eventually_free(service)


async def test_cancelled_while_it_waits(dialer: GrpcDialer) -> None:
    class Hanging(FakeDrafter):
        async def draft(self, request):
            return await asyncio.Event().wait()

    async with serving("drafter", Hanging) as service:
        drafter = await dialer.open_drafter(Lease(service.endpoint), SPEC)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await drafter.draft(DraftRequest(1, 3, (), 3))
        await eventually_free(service)
        with pytest.raises(SpecgateError):
            await drafter.draft(DraftRequest(2, 3, (), 3))


async def test_model_info(dialer: GrpcDialer) -> None:
    async with serving("drafter", context_length=77) as service:
        info = await dialer.model_info(Lease(service.endpoint), "drafter")
        assert info == service.info
        with pytest.raises(InvalidArgument, match="not a verifier"):
            await dialer.model_info(Lease(service.endpoint), "verifier")


async def test_channels_are_shared_and_closed() -> None:
    channels = ChannelCache()
    assert channels.get("host:1") is channels.get("host:1") is not channels.get("host:2")
    await channels.close()
    await channels.close()
