"""Grammars are tried one behind the other: what passed is remembered, what is refused is charged."""

import asyncio
from collections.abc import Iterator

import pytest

from orchestrator.api.grammars import MAX_WAITING, CheckedGrammars
from orchestrator.api.keys.key_file import KeyLimits
from orchestrator.api.keys.keyring import CALLER, Caller
from orchestrator.api.keys.limits import KeyUse
from specgate.errors import InvalidArgument, RateLimited, TooManySessions
from specgate.types import Grammar, GrammarKind
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


async def test_no_more_wait_than_can_be_tried_soon() -> None:
    grammars = CheckedGrammars()
    waiting = [asyncio.create_task(grammars.usable(regex(f"a{{{i}}}"))) for i in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(TooManySessions):
        await grammars.usable(regex("b"))
    await asyncio.gather(*waiting)
    assert await grammars.usable(regex("b")) == regex("b")


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
