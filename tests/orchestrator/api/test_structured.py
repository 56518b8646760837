"""What both doors make of an answer's form, and what they refuse of it, before any service hears of it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.types import Grammar, GrammarKind
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PROMPT,
    RESPONSES,
    Site,
    open_site,
)
from tests.orchestrator.api.queues import open_api

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BAD = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "objekt"}}}}
ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
FOLLOWED = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


def outputs(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 3},
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 3},
    RESPONSES: {"input": "Hi", "max_output_tokens": 3},
}


async def posted(site: Site, path: str, body: dict[str, Any]) -> Any:
    return await site.client.post(path, json={"model": "fake", **ASKED[path], **body})


TAKEN: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
    (schema_format(SCHEMA), FOLLOWED),
    (schema_format(None), ANY_OBJECT),
    (outputs(json=SCHEMA), FOLLOWED),
    (outputs(json=json.dumps(SCHEMA)), FOLLOWED),
    (outputs(json_object=True), ANY_OBJECT),
    (outputs(regex="a+"), Grammar(GrammarKind.REGEX, "a+")),
    (outputs(choice=["yes", "no"]), Grammar(GrammarKind.CHOICE, '["yes", "no"]')),
    (outputs(grammar='start: "a"'), Grammar(GrammarKind.LARK, 'start: "a"')),
    (
        outputs(json={"type": "object"}, disable_any_whitespace=True),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "x-guidance": {"whitespace_pattern": ""}}'),
    ),
    ({"response_format": {"type": "text"}, **outputs(regex="a")}, Grammar(GrammarKind.REGEX, "a")),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("body", "grammar"), TAKEN)
async def test_services_are_told_the_grammar(
    site: Site, path: str, body: dict[str, Any], grammar: Grammar | None
) -> None:
    await site.post(path, **ASKED[path], **body)
    assert site.room.verifier.sessions[-1].spec.grammar == grammar


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, ANY_OBJECT),
        ({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, FOLLOWED),
    ],
)
async def test_a_response_says_its_format_in_one_piece(
    site: Site, asked: dict[str, Any], grammar: Grammar | None
) -> None:
    answer = await site.post(RESPONSES, **ASKED[RESPONSES], text={"format": asked})
    assert site.room.verifier.sessions[-1].spec.grammar == grammar
    assert answer["text"]["format"] == asked
    refused = await posted(site, RESPONSES, {"text": {"format": asked}, **outputs(regex="a")})
    assert refused.status_code == (200 if grammar is None else 400)
    assert grammar is None or "excludes text.format" in refused.json()["error"]["message"]


async def test_each_choice_follows_the_grammar(site: Site) -> None:
    before = len(site.room.verifier.sessions)
    await site.post(COMPLETIONS, prompt=[PROMPT, [7]], n=2, max_tokens=3, **outputs(json=SCHEMA))
    specs = [session.spec for session in site.room.verifier.sessions[before:]]
    assert [spec.grammar for spec in specs] == [FOLLOWED] * 4
    assert len({spec.seed for spec in specs}) == 4


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "grammar"}}, "response_format.type", "'json_object' or 'json_schema'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"response_format": {"type": "text", "json_schema": {"name": "x"}}}, "response_format.json_schema", "type text"),
    (schema_format(BAD), "response_format.json_schema.schema.properties.a.items", "Invalid type: objekt"),
    (schema_format({"not": {}}), "response_format.json_schema.schema", 'Unimplemented keys: ["not"]'),
    (outputs(json=BAD), "structured_outputs.json.properties.a.items", "Invalid type: objekt"),
    (outputs(json="{"), "structured_outputs.json", "EOF"),
    (outputs(json={"x-guidance": 1}, whitespace_pattern=" "), "structured_outputs.json", "must be a JSON schema"),
    (outputs(regex="(a"), "structured_outputs.regex", "unclosed group"),
    (outputs(regex=""), "structured_outputs.regex", "is empty"),
    (outputs(regex="a" * 300_000), "structured_outputs.regex", "has 300000 characters; 262144 are the most"),
    (outputs(choice=[]), "structured_outputs.choice", "at least one text"),
    (outputs(grammar="start: b"), "structured_outputs.grammar", 'unknown name: "b"'),
    (outputs(grammar="root ::= " + "\n" * 9000), "structured_outputs.grammar", "8192 are the most in GBNF"),
    (outputs(), "structured_outputs", "has none"),
    (outputs(regex="a", choice=["a"]), "structured_outputs", "has regex, choice"),
    (outputs(structural_tag="x"), "structured_outputs.structural_tag", "not a parameter"),
    (schema_format(SCHEMA) | outputs(regex="a"), "structured_outputs", "excludes response_format"),
    (outputs(regex="a") | {"min_tokens": 1}, "min_tokens", "excludes a grammar"),
]


@pytest.mark.parametrize(("body", "param", "problem"), REFUSED)
async def test_what_cannot_be_followed_is_refused_by_its_place(
    site: Site, body: dict[str, Any], param: str, problem: str
) -> None:
    num_sessions = len(site.room.verifier.sessions)
    response = await posted(site, CHAT, {**body, "stream": True})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["message"].partition(": ")[0]) == (param, param)
    assert problem in error["message"]
    assert len(error["message"]) < 500
    assert len(site.room.verifier.sessions) == num_sessions


async def test_a_response_names_the_place_in_its_own_words(site: Site) -> None:
    refused = await posted(site, RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": BAD}}})
    assert refused.json()["error"]["param"] == "text.format.schema.properties.a.items"


async def test_the_grpc_door_gives_the_same_verdict() -> None:
    refused = [
        (types_pb2.Grammar(json_schema=json.dumps(BAD)), "grammar.json_schema.properties.a.items"),
        (types_pb2.Grammar(choice=types_pb2.Choice()), "grammar.choice"),
        (types_pb2.Grammar(lark='root ::= "a" b'), "grammar.lark"),
        (types_pb2.Grammar(), "grammar.kind"),
        (types_pb2.Grammar(regex="a"), "min_tokens"),
    ]
    async with open_api() as (room, door), open_channel(door.endpoint) as channel:
        stub: Any = GenerationServiceStub(channel)

        async def ask(grammar: types_pb2.Grammar, min_tokens: int = 0) -> None:
            params = pb.GenerationParams(max_tokens=3, grammar=grammar, min_tokens=min_tokens, n=2)
            await stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT), params=params))

        for grammar, field in refused:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(grammar, int(field == "min_tokens"))
            error = from_rpc_error(caught.value)
            assert isinstance(error, InvalidArgument)
            assert error.field == field
        assert not room.verifier.sessions
        await ask(types_pb2.Grammar(choice=types_pb2.Choice(texts=["a", "b"])))
        specs = [session.spec for session in room.verifier.sessions]
    assert [spec.grammar for spec in specs] == [Grammar(GrammarKind.CHOICE, '["a", "b"]')] * 2
