"""What the clients in Node and in C++ show of deltas, from a door that says what it is told."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import generation_service_pb2_grpc, types_pb2
from tests.orchestrator.api.client_programs import Command, run

LENGTH, STOP = types_pb2.FINISH_REASON_LENGTH, types_pb2.FINISH_REASON_STOP
SOURCES = {
    pb.TOKEN_SOURCE_ACCEPTED: "\x1b[32ma\x1b[0m",
    pb.TOKEN_SOURCE_RECOVERED: "\x1b[33ma\x1b[0m",
    pb.TOKEN_SOURCE_BONUS: "\x1b[36ma\x1b[0m",
    pb.TOKEN_SOURCE_SOLO: "a",
    pb.TOKEN_SOURCE_ACCEPTED_LAYER_SKIP: "\x1b[92ma\x1b[0m",
    pb.TOKEN_SOURCE_ACCEPTED_SUFFIX: "\x1b[35ma\x1b[0m",
}


class Saying(generation_service_pb2_grpc.GenerationServiceServicer):
    """Answers with ``deltas``."""

    def __init__(self, deltas: list[pb.GenerateStreamResponse]) -> None:
        self._deltas = deltas

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateStreamResponse]:
        for delta in self._deltas:
            yield delta


@asynccontextmanager
async def door_that_says(*deltas: pb.GenerateStreamResponse) -> AsyncIterator[str]:
    server = grpc.aio.server()
    generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(Saying(list(deltas)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def delta(text: str, index: int = 0, source: int = pb.TOKEN_SOURCE_SOLO, finish: int = 0) -> pb.GenerateStreamResponse:
    stats = None
    if finish:
        stats = pb.GenerationStats(
            completion_tokens=8, seed=index, drafted_tokens=6, accepted_tokens=3, solo_tokens=1, target_forwards=5
        )
    sources: Any = [pb.TOKEN_SOURCE_ACCEPTED, source]
    return pb.GenerateStreamResponse(
        text=text, token_ids=[1, 2], sources=sources, index=index, finish_reason=finish, stats=stats
    )


async def test_choices_are_shown_one_after_the_other(client: Command) -> None:
    deltas = [
        delta("b", 1),
        delta("a"),
        delta("c", 2, finish=STOP),
        delta("b", 1, finish=LENGTH),
        delta("A", finish=STOP),
    ]
    async with door_that_says(*deltas) as server:
        code, out, err = await run(*client, "--server", server, "--n", "3", "p")
    assert (code, err) == (0, "")
    shown = [block.split(" · ") for block in out.split("\n\n")]
    assert [block[0] for block in shown] == ["aA", "choice 0", "bb", "choice 1", "c", "choice 2"]
    assert [block[-2:] for block in shown[1::2]] == [
        ["finished by stop", "seed 0"],
        ["finished by length", "seed 1"],
        ["finished by stop", "seed 2\n"],
    ]
    assert [shown[1][1], *shown[1][3:6]] == ["8 tokens", "acceptance 50%", "1.60 tokens per target forward", "solo 13%"]


@pytest.mark.parametrize("flags", [[], ["--token-ids"]])
async def test_each_source_has_its_colour(client: Command, flags: list[str]) -> None:
    deltas = [delta("a", source=source) for source in SOURCES]
    async with door_that_says(*deltas, delta("", finish=STOP)) as server:
        _, out, _ = await run(*client, "--server", server, *flags, "7", FORCE_COLOR="1")
    shown = list(SOURCES.values())
    if flags:
        shown = [f"{SOURCES[pb.TOKEN_SOURCE_ACCEPTED].replace('a', '1 ')}{one.replace('a', '2 ')}" for one in shown]
    assert out.startswith("".join(shown))


async def test_text_does_not_steer_a_terminal(client: Command) -> None:
    """Neither by control characters of ASCII nor by those that UTF-8 writes in two bytes; other text is left alone."""
    said = "\x1b[2J\x9b2J\r\x07 é\u00a0語😀\tß"
    async with door_that_says(delta(said, finish=STOP)) as server:
        ours, theirs = os.openpty()
        try:
            code, _, err = await run(*client, "--server", server, "p", stdout=theirs, NO_COLOR="1")
            shown = await asyncio.to_thread(os.read, ours, 65536)
        finally:
            os.close(theirs)
            os.close(ours)
        _, piped, _ = await run(*client, "--server", server, "p")
    assert (code, err) == (0, "")
    assert shown.decode().partition("\r\n")[0] == "\ufffd[2J\ufffd2J\ufffd\ufffd é\u00a0語😀\tß"
    assert piped.startswith(said)
