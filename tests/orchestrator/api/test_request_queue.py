"""The request queue over real gRPC services: its limits, its order, and that everything is freed."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from orchestrator.api.failures import OUT_OF_REACH
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument, ServiceUnavailable, TooManySessions
from tests.orchestrator.api.queues import Hanging, dying_after, expected, open_room
from tests.support.fakes import FakeVerifier
from tests.support.patience import eventually

REQUEST = GenerationRequest((5, 17, 3), max_tokens=60, seed=7, gate=Gate.NONE)


async def read(request_queue: RequestQueue, request: GenerationRequest = REQUEST) -> tuple[int, ...]:
    return tokens([delta async for _, delta in request_queue.deltas([request])])


def tokens(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(token_id for delta in deltas for token_id in delta.token_ids)


async def leave(reader: asyncio.Task[tuple[int, ...]]) -> None:
    reader.cancel()
    await asyncio.wait((reader,))


@pytest.mark.parametrize("max_running", [1, 2])
async def test_first_come_first_served(max_running: int) -> None:
    requests = [GenerationRequest((1, 2, index + 1), max_tokens=30) for index in range(8)]
    async with open_room(max_running=max_running, max_queued=8 - max_running) as room:
        answers = await asyncio.gather(*(read(room.request_queue, request) for request in requests))
        assert answers == [expected(request) for request in requests]
        assert room.request_queue.num_inside == 0
        prompts = [session.spec.prompt_token_ids for session in room.verifier.sessions]
        assert max_running > 1 or prompts == [request.prompt_token_ids for request in requests]


async def test_full() -> None:
    async with open_room(Hanging, max_running=1, max_queued=1) as room:
        first, second = (asyncio.create_task(read(room.request_queue)) for _ in range(2))
        await eventually(lambda: room.request_queue.num_inside == 2 and room.verifier.num_open == 1)
        with pytest.raises(TooManySessions, match="1 requests run and 1 wait") as caught:
            await read(room.request_queue)
        assert caught.value.retry_after_s
        assert len(room.verifier.sessions) == 1
        await leave(second)
        # There is room again; but what does not fit the target is told before it waits.
        with pytest.raises(InvalidArgument, match="max_tokens"):
            await read(room.request_queue, GenerationRequest((1,), max_tokens=5000))
        await leave(first)
        assert room.request_queue.num_inside == 0
        await room.freed()


async def test_drain_waits_for_those_inside_and_takes_no_more() -> None:
    async with open_room(partial(FakeVerifier, delay_s=0.002), max_running=1) as room:
        inside = [asyncio.create_task(read(room.request_queue)) for _ in range(2)]
        await eventually(lambda: room.request_queue.num_inside == 2)
        draining = asyncio.create_task(room.request_queue.drain(60.0))
        await eventually(lambda: room.request_queue.draining)
        with pytest.raises(ServiceUnavailable, match="draining"):
            await read(room.request_queue)
        assert await draining
        assert room.request_queue.num_inside == 0
        assert await asyncio.gather(*inside) == [expected(REQUEST)] * 2


async def test_drain_does_not_wait_for_ever() -> None:
    async with open_room(Hanging) as room:
        inside = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.request_queue.num_inside == 1)
        assert not await room.request_queue.drain(0.05)
        await leave(inside)
        assert await room.request_queue.drain(0.0)


async def test_a_reader_who_is_cancelled_again_and_again_leaves() -> None:
    async def stay(deltas: AsyncGenerator[Any, None]) -> None:
        async with aclosing(deltas):
            await anext(deltas)
            await asyncio.Event().wait()

    async with open_room(Hanging) as room:
        queue = room.request_queue
        reading = asyncio.create_task(stay(queue.deltas([REQUEST] * 2)))
        await eventually(lambda: queue.num_running == 2)
        while not reading.done():
            reading.cancel()
            await asyncio.sleep(0)
        assert queue.num_inside == 0
        assert await queue.drain(30.0)


async def test_a_reader_that_takes_its_time_stops_the_decode_loop() -> None:
    async with open_room(output_buffer=2) as room, aclosing(room.request_queue.deltas([REQUEST])) as deltas:
        for num_read in range(1, 9):
            await anext(deltas)
            await asyncio.sleep(0.01)
            # Two in the buffer, one that waits to get in, one that is on its way.
            assert room.verifier.sessions[0].num_verdicts <= num_read + 4


async def test_an_error_comes_after_the_deltas_before_it() -> None:
    async with open_room(dying_after(3)) as room, aclosing(room.request_queue.deltas([REQUEST])) as deltas:
        received = [(await anext(deltas))[1]]
        # Whatever happens has happened before the reader comes back.
        await eventually(lambda: len(room.verifier.sessions) == 3 and not room.drafter.num_open)
        received += [(await anext(deltas))[1], (await anext(deltas))[1]]
        with pytest.raises(ServiceUnavailable, match=OUT_OF_REACH):
            await anext(deltas)
        assert tokens(received) == expected(REQUEST)[: len(tokens(received))]


async def test_a_gateway_that_closes_leaves_no_text_that_looks_whole() -> None:
    async with open_room(Hanging) as room:
        reader = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.verifier.num_open == 1)
        await room.request_queue.orchestrator.close()
        with pytest.raises(ServiceUnavailable, match="closed before the request was finished"):
            await reader


async def test_no_more_than_two_long_prompts_are_encoded_at_a_time(byte_level: TextTokenizer) -> None:
    may_end, running, most, lock = threading.Event(), 0, 0, threading.Lock()

    def work(_: TextTokenizer) -> tuple[int, ...]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        may_end.wait(30)
        with lock:
            running -= 1
        return (1,)

    async with open_room(tokenizer=byte_level) as room:
        prompts = [asyncio.create_task(room.request_queue.read(work, 5000, "text")) for _ in range(5)]
        await eventually(lambda: running == 2)
        # A client that leaves makes no room for a third while its work goes on.
        prompts[0].cancel()
        # The event loop is free meanwhile, and short prompts pass by.
        assert await room.request_queue.read(lambda _: (2,), 7, "text") == (2,)
        may_end.set()
        assert await asyncio.gather(*prompts[1:]) == [(1,)] * 4
        assert most == 2
