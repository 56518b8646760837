"""Legal requests that take long to answer, at the pair's full context: what everybody else waits for meanwhile."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

pytest.importorskip("ray")

from specgate.v1 import generation_service_pb2 as pb
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.support.chaos_streams import Seen, watch
from tests.support.chaos_system import MODEL, System
from tests.support.chaos_table import ChaosTable
from tests.support.door_process import CONTEXT_LENGTH, DoorProcess, door_process

pytestmark = pytest.mark.chaos

MAX_LOOP_CPU_MS = 50.0
"""Of the thread that serves everybody, for one request at a stretch."""
WAITS_AT_MOST_S = 1.0
PROMPT = [100 + number % 3000 for number in range(CONTEXT_LENGTH - 24)]
PROMPTS_READ = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 20}
ANSWERED = {"prompt": PROMPT[:3], "max_tokens": 500, "ignore_eos": True, "logprobs": 20, "return_rounds": True}
ONE_TURN = {"role": "user", "content": ""}
OBJECTS = [{"type": "object", "properties": {f"a{n}_{i}": {"type": "string"} for i in range(100)}} for n in range(128)]
TOOLS = [{"type": "function", "function": {"name": f"f{n}", "parameters": one}} for n, one in enumerate(OBJECTS)]
IDS = range(32_000)
Bodies = dict[str, tuple[str, dict[str, Any]]]
TAKEN: Bodies = {
    "9 prompts' log-probabilities": ("/v1/completions", PROMPTS_READ | {"n": 9}),
    "a stream that echoes 9 prompts": (
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 1, "n": 9, "echo": True, "logprobs": 20, "stream": True},
    ),
    "16 answers of 500 tokens, 20 likeliest each": ("/v1/completions", ANSWERED | {"n": 16}),
    "4,096 empty messages to tokenize": ("/tokenize", {"messages": [ONE_TURN] * 4096}),
    "400,000 tokens to read": ("/detokenize", {"tokens": [5] * 400_000}),
}
REFUSED: Bodies = {
    "16 prompts' log-probabilities": ("/v1/completions", PROMPTS_READ | {"n": 16, "echo": True, "logprobs": 20}),
    "16 lists of 100,000 ids": ("/v1/completions", {"prompt": [[5] * 100_000] * 16, "max_tokens": 1}),
    "128 tools of 100 parameters": ("/v1/chat/completions", {"messages": [ONE_TURN], "tools": TOOLS}),
    "128 tools of 8 kB that must be called": (
        "/v1/chat/completions",
        {"messages": [ONE_TURN], "tools": TOOLS, "tool_choice": "required", "max_tokens": 1},
    ),
    "a schema of 2,000,000 values": (
        "/v1/completions",
        {"prompt": "a", "structured_outputs": {"json": {"enum": [1] * 2_000_000}, "whitespace_pattern": " "}},
    ),
    "32,000 biases that are none": (
        "/v1/completions",
        {"prompt": "a", "logit_bias": dict.fromkeys(map(str, IDS), "x")},
    ),
}


def post(host: str, path: str, body: dict[str, Any]) -> int:
    """Return the status of an answer that is read to its end."""
    connection = http.client.HTTPConnection(host, timeout=240.0)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def doors() -> Iterator[DoorProcess]:
    with door_process() as doors:
        post(doors.url.removeprefix("http://"), "/v1/completions", {"model": "fake", "prompt": [5], "max_tokens": 2})
        doors.worst_ms()
        yield doors


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED])
def test_one_request_leaves_the_event_loop_to_others(doors: DoorProcess, chaos: ChaosTable, name: str) -> None:
    path, body = (TAKEN | REFUSED)[name]
    with chaos.row(f"HTTP: {name}") as row:
        status = post(doors.url.removeprefix("http://"), path, {"model": "fake"} | body)
        cpu_ms, wait_ms = doors.worst_ms()
        row.seen, row.gap_s = f"{status}; {cpu_ms:.0f} ms of the loop's CPU time at a stretch", wait_ms / 1e3
        assert status == (200 if name in TAKEN else 400)
        assert cpu_ms < MAX_LOOP_CPU_MS
        assert row.gap_s < WAITS_AT_MOST_S


PROMPTS_TOLD = {
    "token_ids": pb.TokenIds(ids=PROMPT),
    "params": pb.GenerationParams(max_tokens=1, prompt_logprobs=20, n=9),
}
CALLS: dict[str, tuple[dict[str, Any], grpc.StatusCode]] = {
    "9 prompts' log-probabilities": (PROMPTS_TOLD, grpc.StatusCode.OK),
    "500,000 empty turns": ({"chat": pb.Chat(messages=[pb.ChatMessage()] * 500_000)}, grpc.StatusCode.INVALID_ARGUMENT),
    "16,000,000 ids": ({"token_ids": pb.TokenIds(ids=[1] * 16_000_000)}, grpc.StatusCode.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
@pytest.mark.parametrize("name", CALLS)
def test_one_call_leaves_the_loop_to_others(doors: DoorProcess, chaos: ChaosTable, name: str, method: str) -> None:
    request, expected = CALLS[name]
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
    with chaos.row(f"gRPC {method}: {name}") as row:
        with grpc.insecure_channel(doors.endpoint, options) as channel:
            status = called(GenerationServiceStub(channel), method, request)
        cpu_ms, wait_ms = doors.worst_ms()
        row.seen, row.gap_s = f"{status.name}; {cpu_ms:.0f} ms of the loop's CPU time at a stretch", wait_ms / 1e3
        assert status is expected
        assert cpu_ms < MAX_LOOP_CPU_MS


def called(stub: Any, method: str, request: dict[str, Any]) -> grpc.StatusCode:
    """Return the status of a call whose answer is read to its end."""
    try:
        if method == "Generate":
            stub.Generate(pb.GenerateRequest(**request), timeout=240)
        else:
            assert list(stub.GenerateStream(pb.GenerateStreamRequest(**request), timeout=240))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@contextmanager
def asked_meanwhile(ask: Callable[[], int]) -> Iterator[list[float]]:
    """Ask over and over while the context lasts; yield what each answer took, in seconds."""
    took_s, ended = [0.0], threading.Event()

    def asking() -> None:
        while not ended.wait(0.02):
            start_s = time.monotonic()
            assert ask() == 200
            took_s.append(time.monotonic() - start_s)

    thread = threading.Thread(target=asking)
    thread.start()
    try:
        yield took_s
    finally:
        ended.set()
        thread.join()


def test_a_served_system_answers_others_meanwhile(system: System, chaos: ChaosTable) -> None:
    """Ask for more log-probabilities than are allowed, then for about as many as are."""
    with chaos.row("serve: 16 and 9 prompts' log-probabilities") as row:
        statuses: list[int] = []

        def attack() -> None:
            for path, body in (REFUSED["16 prompts' log-probabilities"], TAKEN["9 prompts' log-probabilities"]):
                statuses.append(post(system.http, path, {"model": MODEL} | body))

        async def stream() -> Seen:
            return await watch(system.stream(), {20: attack})

        with asked_meanwhile(lambda: system.asks("GET", "/healthz", 60.0)) as took_s:
            seen = asyncio.run(stream())
        row.gap_s = seen.gap_s
        row.text_equal = seen.token_ids == system.text
        row.seen = f"{statuses}; /healthz after {max(took_s):.2f} s at worst, {seen.told}"
        assert statuses == [400, 200]
        assert row.text_equal
        assert max(took_s) < WAITS_AT_MOST_S
