"""Long answers: as many log-probabilities as may be asked for, made beside the event loop that serves everybody."""

import threading
from typing import Any

import grpc
import pytest

from orchestrator.api.http.rendering import MANY, to_json, to_json_in_pieces
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    Telling,
    ascii_tokenizer,
    open_site,
)
from tests.orchestrator.api.queues import open_api

IDS = [5] * 50
TELLS_1000 = {"prompt_logprobs": 4, "n": 4}
"""Of a prompt of 50 tokens."""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": IDS, "max_tokens": 0, **TELLS_1000}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": IDS, "max_tokens": 1, "n": 4, "echo": True, "logprobs": 4}, "logprobs"),
        (COMPLETIONS, {"prompt": [IDS] * 4, "max_tokens": 63, "logprobs": 3}, "logprobs"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 126, "n": 2, "logprobs": True, "top_logprobs": 3}, "top_logprobs"),
    ],
    ids=["prompt", "echo", "answer", "chat"],
)
async def test_too_many_log_probabilities_are_refused_before_anything_is_opened(
    path: str, body: dict[str, Any], param: str
) -> None:
    async with open_site(max_logprobs_per_answer=999) as site:
        response = await site.client.post(path, json={"model": "fake"} | body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert "gateway.max_logprobs_per_answer allows 999" in error["message"]
        assert site.room.verifier.sessions == []


async def test_as_many_as_are_allowed_are_told() -> None:
    async with open_site(max_logprobs_per_answer=1000) as site:
        answer = await site.post(COMPLETIONS, prompt=IDS, max_tokens=0, **TELLS_1000)
    assert [len(choice["prompt_logprobs"]) for choice in answer["choices"]] == [50] * 4


async def test_the_grpc_door_refuses_them_too() -> None:
    async with open_api(Telling, ascii_tokenizer(), max_logprobs_per_answer=999) as (room, api):
        async with open_channel(api.endpoint) as channel:
            stub: Any = GenerationServiceStub(channel)
            params = pb.GenerationParams(max_tokens=1, **TELLS_1000)
            with pytest.raises(grpc.RpcError) as caught:
                await stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=IDS), params=params))
        error = from_rpc_error(caught.value)
        assert isinstance(error, InvalidArgument)
        assert error.field == "prompt_logprobs"
        assert room.verifier.sessions == []


class Watched(TextTokenizer):
    """Knows on which threads it was asked."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.threads: set[int] = set()

    def token_text(self, token_id: int, **place: bool) -> str:
        self.threads.add(threading.get_ident())
        return super().token_text(token_id, **place)

    def encode_chat(self, *args: Any, **flags: Any) -> tuple[int, ...]:
        self.threads.add(threading.get_ident())
        return super().encode_chat(*args, **flags)


LONG = {"prompt": [5] * 500, "max_tokens": 2, "n": 8, "logprobs": 1, "echo": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, LONG),
        (COMPLETIONS, LONG | {"prompt": [5] * 3000, "stream": True, "n": 1}),
        ("/tokenize", {"messages": MESSAGES * 500}),
    ],
    ids=["answer", "stream", "messages"],
)
async def test_what_takes_long_is_made_beside_the_event_loop(path: str, body: dict[str, Any]) -> None:
    tokenizer = ascii_tokenizer(kind=Watched)
    assert isinstance(tokenizer, Watched)
    async with open_site(tokenizer=tokenizer, context_length=4096) as site:
        response = await site.client.post(path, json={"model": "fake"} | body)
        assert response.status_code == 200
        await response.aread()
    assert tokenizer.threads
    assert threading.get_ident() not in tokenizer.threads


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        [[], {}, [[]], ""],
        {"a": [1] * (2 * MANY + 1), "b": {"c": [[1.5, None]] * MANY, 'd"é': [{"e": [True] * (MANY + 1)}]}},
        {"tuples": ((1, 2), ("x",) * (MANY + 1))},
    ],
    ids=str,
)
def test_json_in_pieces_is_the_same_json(value: Any) -> None:
    assert to_json_in_pieces(value) == to_json(value)
