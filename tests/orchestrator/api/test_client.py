"""The Python client against a real door, over the fake model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.choices import seed_of_choice
from orchestrator.api.failures import OUT_OF_REACH
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.client import Chat, ChatMessage, Client, Delta, Params, Prompt
from specgate.errors import InvalidArgument, ResourceExhausted, ServiceUnavailable, SpecgateError, Unauthenticated
from specgate.types import FinishReason, Gate, Grammar, GrammarKind, SamplingParams, TokenSource, Verification
from tests.orchestrator.api.http_serving import TOKENIZER, TURN, Telling
from tests.orchestrator.api.queues import Hanging, Room, dying_after, expected, occupied, open_api
from tests.support.chaos_proxy import BadLine
from tests.support.fakes import FakeVerifier
from tests.support.patience import eventually
from tests.test_imports import run_python

PROMPT = (5, 17, 3)
GREEDY = Params(temperature=0.0, max_tokens=40, seed=7, gate=Gate.NONE, gamma=4)
NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def entered(*args: Any, **room: Any) -> AsyncIterator[tuple[Room, Client]]:
    async with open_api(*args, **room) as (opened, door), Client(door.endpoint) as client:
        yield opened, client


async def all_of(client: Client, prompt: Prompt = PROMPT, params: Params = GREEDY, **call: Any) -> list[Delta]:
    return await read(client.stream(prompt, params, **call))


async def read(stream: AsyncIterator[Delta], deltas: list[Delta] | None = None) -> list[Delta]:
    """Read a stream to its end into ``deltas``, and return them."""
    deltas = [] if deltas is None else deltas
    async for delta in stream:
        deltas.append(delta)
    return deltas


def test_it_needs_neither_torch_nor_http_nor_the_orchestrator() -> None:
    heavy = {"torch", "transformers", "numpy", "http", "httpx", "httpx2", "fastapi", "pydantic", "ray", "orchestrator"}
    assert run_python(f"import sys, specgate.client; print(*{heavy} & {{*sys.modules}})").split() == []


async def test_a_key_is_shown_where_one_is_asked_for(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of("sg-right"))])
    async with open_api(keyring=Keyring(tmp_path / "keys.yaml")) as (_, door):
        async with Client(door.endpoint, key="sg-right") as client:
            assert len((await client.generate(PROMPT, GREEDY)).token_ids) == 40
            assert sum([len(delta.token_ids) for delta in await all_of(client)]) == 40
        for key in (None, "sg-wrong"):
            async with Client(door.endpoint, key=key) as client:
                for asking in (client.generate(PROMPT, GREEDY), all_of(client)):
                    with pytest.raises(Unauthenticated):
                        await asking


async def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    async with entered() as (room, client):
        deltas, answer = await all_of(client), await client.generate(PROMPT, GREEDY)
        await room.freed()
    assert answer.token_ids == tuple(token for delta in deltas for token in delta.token_ids)
    assert answer.token_ids == expected(GenerationRequest(PROMPT, max_tokens=40))
    assert answer.sources == tuple(source for delta in deltas for source in delta.sources)
    assert {TokenSource.ACCEPTED, TokenSource.RECOVERED} <= set(answer.sources)
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]
    assert [delta.stats is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]
    for stats in (answer.stats, deltas[-1].stats):
        assert stats is not None
        assert (stats.prompt_tokens, stats.completion_tokens, stats.seed) == (3, 40, 7)
        assert stats.accepted_by == {"model": stats.accepted_tokens}
        assert 0 < stats.acceptance_rate <= 1


async def test_what_is_asked_reaches_the_target() -> None:
    sampling: dict[str, Any] = {"temperature": 0.5, "top_k": 9, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5}
    sampling |= {"presence_penalty": 0.25, "frequency_penalty": -1.0, "logit_bias": {3: 2.5}}
    params = Params(
        **sampling, max_tokens=9, seed=(1 << 64) - 1, stop="Zebra", stop_token_ids=(90, 4), min_tokens=2,
        verification=Verification.REJECTION, cache_salt="mine",
    )  # fmt: skip
    async with entered(tokenizer=TOKENIZER) as (room, client):
        await client.generate("Hi", params)
        await client.generate("Hi")
        # What is not said is 128, or what the context has left.
        assert len((await client.generate([1] * 500)).token_ids) == 12
        said, nothing, _ = (session.spec for session in room.verifier.sessions)
    assert said.sampling == SamplingParams(**sampling)
    assert (said.max_tokens, said.seed, said.min_tokens, said.cache_salt) == (9, (1 << 64) - 1, 2, "mine")
    assert said.stop_token_ids == {0, 4, 90}
    assert said.verification is Verification.REJECTION
    assert nothing.sampling == SamplingParams()
    assert (nothing.max_tokens, nothing.min_tokens, nothing.logprobs) == (128, 0, None)


async def test_choices_and_log_probabilities() -> None:
    params = Params(max_tokens=9, seed=7, n=3, logprobs=0, prompt_logprobs=1)
    async with entered(Telling) as (_, client):
        answer, deltas = await client.generate(PROMPT, params), await all_of(client, PROMPT, params)
    whole = (answer, *answer.others)
    assert [one.index for one in whole] == [0, 1, 2]
    assert [one.stats.seed for one in whole if one.stats] == [seed_of_choice(7, index) for index in range(3)]
    for one in whole:
        streamed = [delta for delta in deltas if delta.index == one.index]
        assert one.token_ids == tuple(token for delta in streamed for token in delta.token_ids)
        assert one.logprobs == tuple(entry for delta in streamed for entry in delta.logprobs)
        assert len(one.logprobs) == len(one.token_ids)
        assert [entry.logprob for entry in one.prompt_logprobs] == [-0.5, -1.5]


async def test_a_chat_and_text_with_characters_of_several_tokens(byte_level: TextTokenizer) -> None:
    turns = [ChatMessage("system", "Be"), ChatMessage("user", "Hi")]
    async with entered(tokenizer=TOKENIZER) as (_, client):
        answered = await client.generate(turns, GREEDY)
        continued = await client.generate(Chat([*turns, ChatMessage("assistant", "Yo")], True), GREEDY)
    for answer, read in ((answered, "assistant:"), (continued, "assistant:Yo")):
        prompt = TOKENIZER.encode(f"{TURN}system:Be{TURN}user:Hi{TURN}{read}")
        assert answer.token_ids == expected(GenerationRequest(prompt, max_tokens=40))
    async with entered(tokenizer=byte_level) as (_, client):
        deltas = await all_of(client, "naïve 🦊 日本")
    token_ids = expected(GenerationRequest(byte_level.encode("naïve 🦊 日本"), max_tokens=40))
    assert "".join(delta.text for delta in deltas) == byte_level.decode(token_ids)


async def test_leaving_a_stream_frees_its_sessions_at_once() -> None:
    async with entered(partial(FakeVerifier, delay_s=0.001)) as (room, client):
        long = Params(max_tokens=400, ignore_eos=True)
        async for _ in client.stream(PROMPT, long):
            break
        await room.freed()
        async with aclosing(client.stream(PROMPT, long)) as deltas:
            await anext(deltas)
        await room.freed()
        asking = asyncio.create_task(client.generate(PROMPT, long))
        await eventually(lambda: room.verifier.num_open > 0)
        asking.cancel()
        await room.freed()


async def test_a_deadline_ends_the_call() -> None:
    async with entered(Hanging) as (room, client):
        for asking in (all_of(client, timeout_s=0.3), client.generate(PROMPT, timeout_s=0.3)):
            with pytest.raises(ServiceUnavailable, match="DEADLINE_EXCEEDED"):
                await asking
        await room.freed()


async def test_a_client_that_is_closed_ends_its_streams() -> None:
    async with entered(Hanging) as (room, client), aclosing(client.stream(PROMPT, GREEDY)) as deltas:
        await anext(deltas)
        await anext(deltas)
        waiting = asyncio.ensure_future(anext(deltas))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ServiceUnavailable, match="closed"):
            await waiting
        with pytest.raises(ServiceUnavailable, match="closed"):
            await client.generate(PROMPT, GREEDY)
        await room.freed()


@pytest.mark.parametrize(
    ("field", "prompt", "params"),
    [
        ("max_tokens", PROMPT, {"max_tokens": 0}),
        ("gamma", PROMPT, {"gamma": 1 << 32}),
        ("seed", PROMPT, {"seed": 1 << 64}),
        ("n", PROMPT, {"n": 17}),
        ("gate_threshold", PROMPT, {"gate": Gate.TARGET_CONFIDENCE, "gate_threshold": 1.5}),
        ("request", PROMPT, {"gate": "maybe"}),
        ("grammar.regex", PROMPT, {"grammar": Grammar(GrammarKind.REGEX, "(")}),
        ("token_ids", (97,), {}),
        ("token_ids (length)", (), {}),
        ("request", (-1,), {}),
        ("text", "", {}),
        ("text", "half \ud83e of a fox", {}),
        ("chat.messages[0].role", [ChatMessage("robot", "Hi")], {}),
        ("chat.messages[0].content", [ChatMessage("user", "\ud83e")], {}),
        ("chat.messages (length)", Chat([]), {}),
        ("request", [ChatMessage("user", "Hi"), "and a text"], {}),
    ],
)
async def test_bad_input_is_named(field: str, prompt: Any, params: dict[str, Any]) -> None:
    async with entered(tokenizer=TOKENIZER) as (room, client):
        for asking in (all_of(client, prompt, Params(**params)), client.generate(prompt, Params(**params))):
            with pytest.raises(InvalidArgument) as caught:
                await asking
            assert caught.value.field == field
        assert room.verifier.sessions == []


async def test_a_full_system_says_when_to_come_back() -> None:
    async with (
        entered(max_running=1, max_queued=0) as (room, client),
        occupied(room),
    ):
        with pytest.raises(ResourceExhausted) as caught:
            await client.generate(PROMPT)
        assert (caught.value.reason, caught.value.retry_after_s) == ("TOO_MANY_SESSIONS", 1.0)


async def test_a_target_that_is_lost_in_mid_stream() -> None:
    async with entered(dying_after(3)) as (_, client):
        deltas: list[Delta] = []
        with pytest.raises(ServiceUnavailable) as caught:
            await read(client.stream(PROMPT, GREEDY), deltas)
        num_tokens = sum(len(delta.token_ids) for delta in deltas)
        assert f"{OUT_OF_REACH}; the last token sent has index {num_tokens - 1}" in str(caught.value)
        assert (len(deltas), deltas[-1].finish_reason) == (3, None)
        assert caught.value.retry_after_s is not None


async def test_a_server_that_is_gone_in_mid_stream() -> None:
    async with (
        open_api(partial(FakeVerifier, delay_s=0.01)) as (room, door),
        BadLine(door.endpoint) as line,
        Client(line.endpoint) as client,
        aclosing(client.stream(PROMPT, Params(max_tokens=400, ignore_eos=True))) as deltas,
    ):
        await anext(deltas)
        await line.stop()
        with pytest.raises(ServiceUnavailable):
            await read(deltas)
        await room.freed()


def test_a_key_that_no_header_can_carry() -> None:
    for key in ("sg-a\nb", "ключ"):
        with pytest.raises(InvalidArgument, match=r"^key: must be one line of printable ASCII"):
            Client(NOBODY, key=key)


async def test_nobody_is_there() -> None:
    async with Client(NOBODY) as client:
        for asking in (all_of(client), client.generate(PROMPT)):
            with pytest.raises(ServiceUnavailable, match=NOBODY):
                await asking
    with pytest.raises(SpecgateError, match="is not HOST:PORT"):
        Client("nowhere")
