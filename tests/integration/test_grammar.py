"""Under a grammar, through real services with the bundled pair: the target's own text, whatever happens meanwhile."""

import asyncio
import json
import re
import time
from dataclasses import replace
from typing import Any

import grpc
import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Generation
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.convert_session import session_spec_to_pb
from specgate.types import FinishReason, Grammar, GrammarKind, SamplingParams, SessionSpec, Verification
from specgate.v1 import types_pb2, verifier_service_pb2
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.grammars import choice, regex
from tests.support.orchestrating import connected, expect_texts, run, run_all
from tests.support.services import PAIR, Service, running

SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA,
    json.dumps({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "args": {"type": "array", "items": {"enum": ["self", "x", "value"]}, "maxItems": 3},
            "returns": {"type": "boolean"},
        },
        "required": ["name", "args", "returns"],
        "additionalProperties": False,
    }),
)  # fmt: skip
DEF = regex(r"def [a-z_]{1,12}\(self(, [a-z]{1,6}){0,2}\):\n    return [a-z]{1,8}")
GRAMMARS = {"schema": SCHEMA, "regex": DEF, "choice": choice("import os", "import sys", "from os import path")}
PROMPT = "class Reader:\n    "
DRAFTED: dict[str, Any] = {"gamma": 4, "gate": Gate.NONE}
SAMPLED = SamplingParams(temperature=1.0)


def fits(name: str, text: str) -> bool:
    if name == "schema":
        answer = json.loads(text)
        return list(answer) == ["name", "args", "returns"] and len(answer["name"]) <= 12
    pattern = "import os|import sys|from os import path" if name == "choice" else GRAMMARS[name].text
    return bool(re.fullmatch(pattern, text))


def requests(orchestrator: Any, grammar: Grammar, **fields: Any) -> list[GenerationRequest]:
    prompt = orchestrator.tokenizer.encode(PROMPT)
    like = GenerationRequest(prompt, SAMPLED, max_tokens=120, grammar=grammar, **{**DRAFTED, **fields})
    return [replace(like, sampling=SamplingParams(temperature=0.0)), *(replace(like, seed=seed) for seed in range(4))]


@pytest.mark.parametrize("name", GRAMMARS)
async def test_the_text_is_the_targets_own_and_fits(drafter: Service, verifier: Service, name: str) -> None:
    async with connected([drafter], [verifier]) as orchestrator:
        alone = await run_all(orchestrator, requests(orchestrator, GRAMMARS[name], gamma=0))
        drafted = await run_all(orchestrator, requests(orchestrator, GRAMMARS[name]))
        rejected = await run_all(
            orchestrator, requests(orchestrator, GRAMMARS[name], verification=Verification.REJECTION)
        )
    expect_texts(name, drafted, [one.token_ids for one in alone])
    for one in (*alone, *drafted, *rejected):
        assert one.finish_reason is FinishReason.STOP
        assert fits(name, one.text)
    for runs in (drafted, rejected):
        assert sum(one.stats.accepted for one in runs) > sum(one.stats.rounds for one in runs) / 2


async def test_without_end_tokens_an_answer_ends_where_the_grammar_does(drafter: Service, verifier: Service) -> None:
    async with connected([drafter], [verifier]) as orchestrator:
        for one in await run_all(orchestrator, requests(orchestrator, GRAMMARS["choice"], ignore_eos=True)):
            assert one.finish_reason is FinishReason.STOP
            assert fits("choice", one.text)


async def test_a_verifier_that_is_lost_in_mid_answer_is_replaced(drafter: Service, verifier: Service) -> None:
    with running("verifier", PAIR / "target") as lost:
        async with connected([drafter], [lost, verifier]) as orchestrator:
            _, *asked = requests(orchestrator, SCHEMA)
            whole = await run_all(orchestrator, asked)
            num_seen = 0

            async def disturbed(request: GenerationRequest) -> Generation:
                nonlocal num_seen
                generation = orchestrator.generate(request)
                async for delta in generation:
                    num_seen += len(delta.token_ids)
                    if num_seen > 10 and lost.pid:
                        lost.kill()
                return generation

            generations = await asyncio.gather(*map(disturbed, asked))
    assert [one.token_ids for one in generations] == [one.token_ids for one in whole]
    assert sum(one.stats.verifier_failovers for one in generations) > 0


# Of a size that takes its compiler a second or two, and one that has more ways to be read than can be followed.
WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1_500)}, "required": []}
LOWEST = {"type": "integer", "minimum": -(1 << 63), "maximum": -(1 << 63)}
"""The library recurses on it until its stack ends."""
HARD = {
    "wide": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(WIDE)),
    "ambiguous": Grammar(GrammarKind.LARK, 'start: a\na: a a | "x" | a a a | '),
    "large": regex("(((a{1,100}){1,100}){1,100}){1,100}"),
}


async def test_hard_grammars_hold_up_nobody_else(drafter: Service, verifier: Service) -> None:
    async with connected([drafter], [verifier]) as orchestrator:
        prompt = orchestrator.tokenizer.encode(PROMPT)
        plain = GenerationRequest(prompt, SAMPLED, max_tokens=200, seed=1, ignore_eos=True, **DRAFTED)
        expected = await run(orchestrator, plain)
        hard = [replace(plain, grammar=one, max_tokens=100) for one in HARD.values()]
        beside = [asyncio.create_task(_outcome(orchestrator, one)) for one in hard]
        gaps: list[float] = []
        generation, last_s = orchestrator.generate(plain), time.monotonic()
        async for _ in generation:
            gaps.append(time.monotonic() - last_s)
            last_s = time.monotonic()
        outcomes = await asyncio.gather(*beside)
    print(f"longest gap {max(gaps):.3f} s of {len(gaps)}; {outcomes}")
    assert generation.token_ids == expected.token_ids
    # Of seconds each, if they were followed on the engine's thread.
    assert max(gaps[1:]) < 2.0


def rules(num_rules: int) -> Grammar:
    """A grammar whose rules are read one in the other."""
    chain = [f"a{i}: a{i + 1}" for i in range(num_rules)]
    return Grammar(GrammarKind.LARK, "\n".join(["start: a0", *chain, f'a{num_rules}: "x"']))


async def test_the_deepest_grammar_that_may_be_ends_no_service(drafter: Service, verifier: Service) -> None:
    async with connected([drafter], [verifier]) as orchestrator:
        request = GenerationRequest((1, 2, 3), SAMPLED, max_tokens=4, seed=1, grammar=rules(15_000), **DRAFTED)
        generation = await run(orchestrator, request)
        assert orchestrator.tokenizer.decode(generation.token_ids) == "x"
        assert generation.stats.verifier_failovers == generation.stats.drafter_failures == 0


async def _outcome(orchestrator: Any, request: GenerationRequest) -> str:
    try:
        generation: Generation = await run(orchestrator, request)
    except InvalidArgument as error:
        return str(error)
    return f"{len(generation.token_ids)} tokens"


@pytest.mark.parametrize(
    ("grammar", "field"),
    [
        (types_pb2.Grammar(regex="(a"), "grammar.regex"),
        (types_pb2.Grammar(lark="start: <|no such token|>"), "grammar.lark"),
        (types_pb2.Grammar(), "grammar.kind"),
        (types_pb2.Grammar(json_schema='{"type": "integer", "multipleOf": 16777213}'), "grammar.json_schema"),
        (types_pb2.Grammar(lark=f"start: %json {json.dumps(LOWEST)}"), "grammar.lark"),
    ],
)
async def test_a_verifier_refuses_what_it_cannot_follow(
    verifier: Service, grammar: types_pb2.Grammar, field: str
) -> None:
    opening = session_spec_to_pb(SessionSpec((1, 2, 3), SamplingParams(), 1, Verification.SHARED_NOISE, 20))
    opening.grammar.CopyFrom(grammar)
    opening.grammar.SetInParent()
    async with open_channel(verifier.endpoint) as channel:
        call: Any = VerifierServiceStub(channel).Verify()
        await call.write(verifier_service_pb2.VerifyRequest(open=opening))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(f"{field}: ")
