"""Releases that are mixed: what an old one said is sent to this one, and this one is put before old services."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.policy.gates import Gate
from specgate.client import Client, Params
from specgate.rpc.channel import open_channel
from tests.support.old_release import LONG_TEXTS, OldRelay, Recorded, recorded
from tests.support.orchestrating import HasEndpoint, connected, expect_texts, run_all
from tests.support.patience import patience
from tests.support.services import HELD_OUT_PROMPTS, Service, of_short_context, running

SAME = {
    "/Draft": ("round", "proposal"),
    "/Verify": ("round", "num_accepted", "token_id", "solo", "last", "finish_reason", "follow_up"),
}
"""Of an answer, whatever the machine and its load."""


def in_order(call: Recorded) -> Iterator[tuple[bool, Sequence[bytes]]]:
    """Yield in turn what the client sent, and the answers that it waited for; announcements come when they come.

    Follow-ups go before the round that they follow, which may be over before they come.
    """

    def is_round(message: bytes) -> bool:
        return bool(call.read(message, is_request=True).HasField("round"))

    awaited = [one for one in call.messages if one[0] or not is_announcement(call.read(one[1]))]
    for is_request, group in groupby(awaited, lambda one: one[0]):
        messages = [message for _, message in group]
        yield is_request, sorted(messages, key=is_round) if is_request else messages


def is_announcement(answer: Any) -> bool:
    return any(field.name == "announced" for field, _ in answer.ListFields())


async def said_again(call: Recorded, endpoint: str) -> list[Any]:
    """Send a stream's messages anew, and return the answers as the release reads them; no announcements."""
    answers: list[Any] = []
    async with patience(), open_channel(endpoint) as channel:
        stream: Any = channel.stream_stream(call.method)()
        for is_request, messages in in_order(call):
            for message in messages:
                if is_request:
                    await stream.write(message)
                    continue
                while is_announcement(answer := call.read(await stream.read())):
                    pass
                answers.append(answer)
        stream.cancel()
    return answers


@pytest.mark.parametrize("ending", SAME)
async def test_an_old_orchestrator_is_answered_as_before(drafter: Service, verifier: Service, ending: str) -> None:
    call = recorded(ending)
    answers = await said_again(call, (drafter if ending == "/Draft" else verifier).endpoint)
    before = [one for one in call.responses if not is_announcement(one)]
    assert len(answers) == len(before) > 10
    assert answers[0].opened
    for name in SAME[ending]:
        assert [getattr(one, name) for one in answers] == [getattr(one, name) for one in before], name


@pytest.mark.parametrize("role", ["Drafter", "Verifier"])
async def test_an_old_orchestrator_knows_the_models_again(drafter: Service, verifier: Service, role: str) -> None:
    call = recorded(f"{role}Service/GetModelInfo")
    async with open_channel((drafter if role == "Drafter" else verifier).endpoint) as channel:
        now = call.read(await channel.unary_unary(call.method)(b""))
    before = call.responses[0]
    for name in ("proto_version", "role", "model", "context_length", "vocab_size", "eos_token_ids"):
        assert getattr(now, name) == getattr(before, name)
    assert dict(now.tokenizer_fingerprint) == dict(before.tokenizer_fingerprint)


@asynccontextmanager
async def opened_door(drafters: Sequence[HasEndpoint], verifiers: Sequence[HasEndpoint]) -> AsyncIterator[str]:
    async with connected(drafters, verifiers) as orchestrator:
        api = GrpcApi(RequestQueue(orchestrator, GatewaySettings(), Defaults(), "specgate"), Listen(), drain_s=0.0)
        await api.start()
        try:
            yield api.endpoint
        finally:
            await api.drain()


async def test_an_old_client_has_its_text(drafter: Service, verifier: Service) -> None:
    call = recorded("/GenerateStream")
    (request,) = (message for is_request, message in call.messages if is_request)
    async with opened_door([drafter], [verifier]) as endpoint, open_channel(endpoint) as channel:
        stream: Any = channel.unary_stream(call.method)(request)
        answers = [call.read(one) async for one in stream]
    for name in ("text", "token_ids", "logprobs.top_token_ids"):
        assert parts(answers, name) == parts(call.responses, name)
    last, before = answers[-1], call.responses[-1]
    assert (last.finish_reason, last.stats.seed) == (before.finish_reason, before.stats.seed)


def parts(answers: Sequence[Any], path: str) -> list[Any]:
    """Return what a field holds in all answers, one after the other: where a stream is cut is a matter of time."""
    for name in path.split("."):
        answers = [piece for one in answers for piece in getattr(one, name)]
    return list(answers)


async def test_a_client_of_this_release_at_an_old_door(drafter: Service, verifier: Service) -> None:
    params = Params(max_tokens=24, seed=5, gate=Gate.TARGET_CONFIDENCE, gamma=4, draft_threshold=0.1, logprobs=1)
    async with (
        opened_door([drafter], [verifier]) as endpoint,
        OldRelay(endpoint) as old,
        Client(endpoint) as here,
        Client(old.endpoint) as there,
    ):
        own, answer = [await client.generate(HELD_OUT_PROMPTS[0][-80:], params) for client in (here, there)]
    assert (answer.token_ids, answer.finish_reason) == (own.token_ids, own.finish_reason)


@pytest.fixture(scope="module")
def short_drafter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One that holds fewer tokens than the texts have."""
    with running("drafter", of_short_context(tmp_path_factory.mktemp("short"))) as service:
        yield service


@pytest.mark.parametrize("old", ["drafter", "verifier"])
async def test_old_services(drafter: Service, verifier: Service, short_drafter: Service, old: str) -> None:
    """An old drafter is asked for as long as it holds the text, and then no more."""
    relays: list[OldRelay] = []
    async with AsyncExitStack() as stack:

        async def at(service: Service, role: str) -> HasEndpoint:
            if role != old:
                return service
            relays.append(await stack.enter_async_context(OldRelay(service.endpoint)))
            return relays[-1]

        verifiers = [await at(verifier, "verifier")]
        async with connected([], verifiers) as orchestrator:
            alone = await run_all(orchestrator, [replace(one, gamma=0) for one in LONG_TEXTS])
        for service in (drafter, short_drafter):
            async with connected([await at(service, "drafter")], verifiers) as orchestrator:
                for gate in (Gate.NONE, Gate.DRAFT_CONFIDENCE, Gate.AUTO):
                    drafted = [replace(one, gamma=4, gate=gate) for one in LONG_TEXTS]
                    generations = await run_all(orchestrator, drafted)
                    expect_texts(f"{gate}", generations, [one.token_ids for one in alone])
                    assert sum(one.stats.drafter_failures for one in generations) == 0
                    assert gate is Gate.AUTO or sum(one.stats.accepted for one in generations) > 0
    assert [one.refusals for one in relays] == [[]] * len(relays)
