"""The adapters against real gRPC. That all goes well is shown by ``tests.orchestrator.generation``."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer, GrpcDrafter, GrpcVerifier, WrapCall
from orchestrator.services.streams import ChannelCache
from specgate.errors import InternalError, ServiceUnavailable, SpecgateError
from specgate.types import (
    ALWAYS_SOLO,
    DraftRequest,
    FollowUp,
    FollowUps,
    Proposal,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
)
from tests.support.decoding import make_spec, target_alone
from tests.support.fake_services import FakeService, serving, silent, unused_endpoint
from tests.support.fakes import FakeDrafter, FakeVerifier
from tests.support.orchestrating import dialing
from tests.support.patience import eventually, patience

SPEC = make_spec(20)
TRUTH = target_alone(SPEC)


@pytest.fixture
async def dialer() -> AsyncIterator[GrpcDialer]:
    async with dialing() as dialer:
        yield dialer


@asynccontextmanager
async def drafting(wrap_call: WrapCall | None = None) -> AsyncIterator[tuple[FakeService, GrpcDrafter]]:
    async with (
        dialing(wrap_call=wrap_call) as dialer,
        serving("drafter", lambda spec: FakeDrafter(spec, agreement=1.0)) as service,
    ):
        yield service, await dialer.open_drafter(Lease(service.endpoint), SPEC)


@asynccontextmanager
async def verifying(dialer: GrpcDialer, make: Any = FakeVerifier) -> AsyncIterator[tuple[FakeService, GrpcVerifier]]:
    async with serving("verifier", make) as service:
        yield service, await dialer.open_verifier(Lease(service.endpoint), SPEC)


async def collect(verifier: GrpcVerifier, request: VerifyRequest) -> list[Verdict]:
    return [verdict async for verdict in verifier.verify(request)]


async def test_accepted_tokens_are_not_sent_again() -> None:
    sent: list[Any] = []

    def recorded(call: Any) -> Any:
        write = call.write

        async def record(message: Any) -> None:
            sent.append(message.round)
            await write(message)

        call.write = record
        return call

    async with drafting(recorded) as (service, drafter):
        await drafter.draft(DraftRequest(1, 3, (), 4))
        await drafter.draft(DraftRequest(2, 3, (*TRUTH[:4], 90), 4))
        proposal = await drafter.draft(DraftRequest(3, 8, (91,), 4))
        # Once something else was said, the proposal is gone: its tokens are new ones.
        await drafter.draft(DraftRequest(4, 9, (), 0))
        await drafter.draft(DraftRequest(5, 9, proposal.draft_token_ids[:2], 0))
        await drafter.close()
        await drafter.close()
        await eventually(lambda: not service.num_open)
    assert [(one.position, one.num_accepted, list(one.token_ids)) for one in sent[1:]] == [
        (3, 0, []),
        (3, 4, [90]),
        (8, 0, [91]),
        (9, 0, []),
        (9, 0, list(proposal.draft_token_ids[:2])),
    ]


async def test_a_round_that_the_verifier_went_on_with_is_read_and_not_sent(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (service, verifier):
        follow_ups = FollowUps(2, 3, (FollowUp(1, 96, (5,)), FollowUp(2, TRUTH[2], TRUTH[3:5], 0.0)), ALWAYS_SOLO, 1)
        verifier.expect(follow_ups)
        await eventually(lambda: bool(service.sessions) and service.sessions[0].expected == follow_ups)
        first = await collect(verifier, VerifyRequest(1, 3, Proposal(TRUTH[:2])))
        assert [one.follow_up for one in first] == [2]
        second = await collect(verifier, VerifyRequest(2, 6, Proposal(TRUTH[3:5]), ALWAYS_SOLO, 1))
        assert [(one.num_accepted, one.token_id, one.solo) for one in second] == [
            (2, TRUTH[5], False),
            (0, TRUTH[6], True),
        ]
        # The next one is asked for again.
        (third,) = await collect(verifier, VerifyRequest(3, 10, Proposal(TRUTH[7:8])))
        assert (third.num_accepted, third.token_id) == (1, TRUTH[8])
        assert [request.round for request in service.sessions[0].requests] == [1, 2, 3]
        await verifier.close()
        await eventually(lambda: not service.num_open)


class TellsOfItsPrompt(FakeVerifier):
    """Tells log-probabilities of three tokens, in two messages."""

    prompt_logprobs = ((TokenLogprobs(-1.0), TokenLogprobs(-2.0)), (TokenLogprobs(-3.0),))


async def test_the_first_verdict_brings_what_was_told_of_the_prompt(dialer: GrpcDialer) -> None:
    spec = replace(SPEC, prompt_token_ids=(5, 6, 7, 8), prompt_logprobs=0)
    async with serving("verifier", TellsOfItsPrompt) as service:
        verifier = await dialer.open_verifier(Lease(service.endpoint), spec)
        (first,) = await collect(verifier, VerifyRequest(1, 4, Proposal()))
        (second,) = await collect(verifier, VerifyRequest(2, 5, Proposal()))
        assert [one.logprob for one in first.prompt_logprobs] == [-1.0, -2.0, -3.0]
        assert second.prompt_logprobs == ()
        await verifier.close()


@pytest.mark.parametrize("num_prompt_tokens", [2, 3, 5])
async def test_too_much_or_too_little_told_of_the_prompt_is_nonsense(
    dialer: GrpcDialer, num_prompt_tokens: int
) -> None:
    spec = replace(SPEC, prompt_token_ids=(5,) * num_prompt_tokens, prompt_logprobs=0)
    async with serving("verifier", TellsOfItsPrompt) as service:
        verifier = await dialer.open_verifier(Lease(service.endpoint), spec)
        with pytest.raises(InternalError, match="answered nonsense"):
            await collect(verifier, VerifyRequest(1, num_prompt_tokens, Proposal()))
        await verifier.close()


async def test_follow_ups_of_a_session_that_is_over_bother_nobody(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (service, verifier):
        for _ in range(2):
            verifier.expect(FollowUps(2, 3, ()))
            await verifier.close()
        await eventually(lambda: not service.num_open)


async def test_nobody_there_and_a_stopped_process() -> None:
    with silent() as stopped:
        async with dialing(open_timeout_s=0.3) as dialer, patience():
            with pytest.raises(ServiceUnavailable):
                await dialer.open_drafter(Lease(unused_endpoint()), SPEC)
            with pytest.raises(ServiceUnavailable):
                await dialer.open_verifier(Lease(stopped), SPEC)


async def test_service_that_dies_in_mid_session(dialer: GrpcDialer) -> None:
    async with verifying(dialer) as (service, verifier):
        await service.stop()
        with pytest.raises(ServiceUnavailable):
            await collect(verifier, VerifyRequest(1, 3, Proposal()))
        with pytest.raises(SpecgateError):
            await collect(verifier, VerifyRequest(2, 3, Proposal()))


@pytest.mark.parametrize("changes", [{"round": 9}, {"num_accepted": 1}, {"confidence": float("nan")}], ids=str)
async def test_nonsense_of_a_verifier(dialer: GrpcDialer, changes: dict[str, Any]) -> None:
    async with verifying(dialer) as (service, verifier):
        service.answer = lambda pb: type(pb)(**{"round": 1, "confidence": 0.5, "token_id": 5, "last": True, **changes})
        with pytest.raises(InternalError, match="nonsense"):
            await collect(verifier, VerifyRequest(1, 3, Proposal()))


async def test_a_drafter_may_have_nothing_to_go_by() -> None:
    async with drafting() as (service, drafter):
        service.answer = lambda pb: type(pb)(round=1)
        assert len(await drafter.draft(DraftRequest(1, 3, (), 3))) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 9},
        {"proposal": {"draft_token_ids": (1, 2, 3, 4)}},
        {"proposal": {"draft_token_ids": (1, 2), "draft_probs": [{"token_ids": [1], "probs": [1.0]}]}},
    ],
    ids=["round", "too long", "probs"],
)
async def test_nonsense_of_a_drafter(changes: dict[str, Any]) -> None:
    async with drafting() as (service, drafter):
        service.answer = lambda pb: type(pb)(**{"round": 1, "proposal": {"draft_token_ids": (1, 2)}, **changes})
        with pytest.raises(InternalError, match="nonsense"):
            await drafter.draft(DraftRequest(1, 3, (), 3))


async def test_closed_while_it_waits(dialer: GrpcDialer) -> None:
    """To the task that waits it is a failure, not its own cancellation."""

    class Hanging(FakeVerifier):
        async def verify(self, request):
            await asyncio.Event().wait()
            yield

    async with verifying(dialer, Hanging) as (service, verifier):
        task = asyncio.create_task(collect(verifier, VerifyRequest(1, 3, Proposal())))
        await asyncio.sleep(0.1)
        await verifier.close()
        with pytest.raises(ServiceUnavailable):
            await task
        await eventually(lambda: not service.num_open)


async def test_cancelled_while_it_waits(dialer: GrpcDialer) -> None:
    class Hanging(FakeDrafter):
        async def draft(self, request):
            return await asyncio.Event().wait()

    async with serving("drafter", Hanging) as service:
        drafter = await dialer.open_drafter(Lease(service.endpoint), SPEC)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await drafter.draft(DraftRequest(1, 3, (), 3))
        await eventually(lambda: not service.num_open)
        with pytest.raises(SpecgateError):
            await drafter.draft(DraftRequest(2, 3, (), 3))


async def test_channels_are_shared_and_closed() -> None:
    channels = ChannelCache()
    assert channels.get("host:1") is channels.get("host:1") is not channels.get("host:2")
    await channels.close()
    await channels.close()
