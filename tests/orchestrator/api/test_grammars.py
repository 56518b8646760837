"""Grammars are tried one behind the other: what passed is remembered, what is refused is charged."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context

import httpx2
import pytest

from orchestrator.api.grammars import MAX_WAITING_EACH, CheckedGrammars
from orchestrator.api.keys.key_file import KeyLimits
from orchestrator.api.keys.keyring import ADDRESS, CALLER, Caller, client_name
from orchestrator.api.keys.limits import KeyUse
from orchestrator.api.settings.listen import Listen
from specgate.client import Client, Params
from specgate.errors import InvalidArgument, RateLimited, TooManySessions
from specgate.types import Grammar, GrammarKind
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, serving_http
from tests.orchestrator.api.queues import open_api
from tests.support.grammars import regex

DEAR = regex("a?" * 60_000)


@pytest.fixture
def caller() -> Iterator[KeyUse]:
    use = KeyUse("ann", KeyLimits(requests_per_minute=2))
    token = CALLER.set(Caller("ann", use))
    yield use
    CALLER.reset(token)


async def test_one_that_passed_waits_for_nobody() -> None:
    grammars = CheckedGrammars()
    gbnf = Grammar(GrammarKind.LARK, 'root ::= "a"')
    passed = await grammars.usable(gbnf)
    assert "::=" not in passed.text
    waiting = asyncio.create_task(grammars.usable(DEAR))
    await asyncio.sleep(0)
    assert await grammars.usable(gbnf) == passed
    assert not waiting.done()
    with pytest.raises(InvalidArgument):
        await waiting


def by_address(name: str) -> None:
    ADDRESS.set(name)


def by_key(name: str) -> None:
    ADDRESS.set("127.0.0.1")
    CALLER.set(Caller(name, KeyUse(name, KeyLimits())))


@pytest.mark.parametrize("identify", [by_address, by_key])
async def test_who_asks_for_too_many_waits_alone(identify: Callable[[str], None]) -> None:
    grammars, ann, eve = CheckedGrammars(), copy_context(), copy_context()
    ann.run(identify, "ann")
    eve.run(identify, "eve")
    flood = [asyncio.create_task(grammars.usable(DEAR), context=ann) for _ in range(MAX_WAITING_EACH + 1)]
    await asyncio.sleep(0)
    with pytest.raises(TooManySessions):
        await asyncio.create_task(grammars.usable(regex("a")), context=ann)
    assert await asyncio.create_task(grammars.usable(regex("b")), context=eve) == regex("b")
    # The one before which eve had come, and one that may have ended since.
    assert sum(task.done() for task in flood) <= 2
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert await asyncio.create_task(grammars.usable(regex("a")), context=ann) == regex("a")


async def test_both_doors_know_a_client_by_its_address() -> None:
    """Two addresses at the HTTP door, and one of them at the gRPC door."""
    names: list[str] = []
    async with (
        open_api() as (room, door),
        serving_http(room.request_queue) as url,
        httpx2.AsyncClient(base_url=url) as here,
        httpx2.AsyncClient(base_url=url, transport=httpx2.AsyncHTTPTransport(local_address="127.0.0.2")) as elsewhere,
        Client(door.endpoint) as client,
    ):
        checked = room.request_queue.checked

        async def heard(grammar: Grammar | None) -> Grammar | None:
            names.append(client_name())
            return await checked(grammar)

        room.request_queue.checked = heard  # type: ignore[method-assign]
        for http in (here, elsewhere):
            await http.post(COMPLETIONS, json={"model": "fake", "prompt": PROMPT, "max_tokens": 1})
        await client.generate(PROMPT, Params(max_tokens=1))
    async with open_api(listen=Listen(host="::1")) as (room, door), Client(door.endpoint) as client:
        room.request_queue.checked = heard  # type: ignore[method-assign]
        await client.generate(PROMPT, Params(max_tokens=1))
    assert names == ["127.0.0.1", "127.0.0.2", "127.0.0.1", "::1"]


async def test_what_is_refused_is_a_request_of_the_key(caller: KeyUse) -> None:
    grammars = CheckedGrammars()
    for _ in range(2):
        # That one is charged when it is asked for.
        await grammars.usable(regex("a"))
        with pytest.raises(InvalidArgument):
            await grammars.usable(regex("(a"))
    with pytest.raises(RateLimited):
        await grammars.usable(regex("(a"))
    with pytest.raises(RateLimited):
        caller.check(1)
