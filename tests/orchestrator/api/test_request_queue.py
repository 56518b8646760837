"""The desk over real gRPC services: its limits, its order, and that everything is freed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

import pytest

from orchestrator.api import request_queue as desk_module
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument, ServiceUnavailable, TooManySessions
from specgate.types import FinishReason
from tests.orchestrator.api.queues import Room, dying_after, eventually, expected, open_room
from tests.support.fakes import FakeVerifier, Fault

REQUEST = GenerationRequest((5, 17, 3), max_tokens=60, seed=7, gate=Gate.NONE)
Hanging = partial(FakeVerifier, faults={2: Fault.HANG})
"""Two verdicts, then none any more."""


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with open_room() as room:
        yield room


async def read(request_queue: RequestQueue, request: GenerationRequest = REQUEST) -> list[Delta]:
    async with request_queue.admitted(request) as running:
        return [delta async for delta in running.deltas()]


async def encode(request_queue: RequestQueue, text: str) -> tuple[int, ...]:
    return await request_queue.encode(lambda tokenizer: tokenizer.encode(text), len(text), "text")


async def read_into(received: list[Delta], deltas: AsyncIterator[Delta]) -> None:
    async for delta in deltas:
        received.append(delta)


def tokens(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(token_id for delta in deltas for token_id in delta.token_ids)


async def test_a_request_from_the_door_to_its_end(room: Room) -> None:
    async with room.request_queue.admitted(REQUEST) as running:
        deltas = [delta async for delta in running.deltas()]
        assert running.stats.completion_tokens == 60
    assert tokens(deltas) == expected(REQUEST)
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.LENGTH]
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert room.request_queue.num_inside == 0
    await room.freed()


async def test_many_more_than_run_at_a_time() -> None:
    requests = [GenerationRequest((1, 2, index + 1), max_tokens=30) for index in range(8)]
    async with open_room(max_running=2, max_queued=6) as room:
        answers = await asyncio.gather(*(read(room.request_queue, request) for request in requests))
        assert [tokens(answer) for answer in answers] == [expected(request) for request in requests]
        assert room.request_queue.num_inside == 0


async def test_first_come_first_served() -> None:
    requests = [GenerationRequest((1, 2, index + 1), max_tokens=5) for index in range(6)]
    async with open_room(max_running=1, max_queued=5) as room:
        await asyncio.gather(*(read(room.request_queue, request) for request in requests))
        prompts = [session.spec.prompt_token_ids for session in room.verifier.sessions]
        assert prompts == [request.prompt_token_ids for request in requests]


async def test_full() -> None:
    async with open_room(Hanging, max_running=1, max_queued=1) as room:
        first, second = (asyncio.create_task(read(room.request_queue)) for _ in range(2))
        await eventually(lambda: room.request_queue.num_inside == 2 and room.verifier.num_open == 1)
        with pytest.raises(TooManySessions, match="1 requests run and 1 wait") as caught:
            await read(room.request_queue)
        assert caught.value.retry_after_s
        with pytest.raises(TooManySessions):
            room.request_queue.check_room()
        assert len(room.verifier.sessions) == 1
        second.cancel()
        await asyncio.wait((second,))
        room.request_queue.check_room()
        first.cancel()
        await asyncio.wait((first,))
        assert room.request_queue.num_inside == 0
        await room.freed()


async def test_what_does_not_fit_is_told_before_it_waits() -> None:
    async with open_room(Hanging, max_running=1, max_queued=1) as room:
        first = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.verifier.num_open == 1)
        with pytest.raises(InvalidArgument, match="max_tokens"):
            await read(room.request_queue, GenerationRequest((1,), max_tokens=5000))
        assert room.request_queue.num_inside == 1
        first.cancel()
        await asyncio.wait((first,))


async def test_drain_waits_for_those_inside_and_takes_no_more() -> None:
    async with open_room(partial(FakeVerifier, delay_s=0.002), max_running=1) as room:
        inside = [asyncio.create_task(read(room.request_queue)) for _ in range(2)]
        await eventually(lambda: room.request_queue.num_inside == 2)
        draining = asyncio.create_task(room.request_queue.drain(60.0))
        await eventually(lambda: room.request_queue.draining)
        with pytest.raises(ServiceUnavailable, match="draining"):
            await read(room.request_queue)
        assert await draining
        assert [tokens(task.result()) for task in inside] == [expected(REQUEST)] * 2


async def test_drain_does_not_wait_for_ever() -> None:
    async with open_room(Hanging) as room:
        inside = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.request_queue.num_inside == 1)
        assert not await room.request_queue.drain(0.05)
        inside.cancel()
        await asyncio.wait((inside,))
        assert await room.request_queue.drain(0.0)


async def test_a_reader_that_takes_its_time_stops_the_decode_loop() -> None:
    request = GenerationRequest((5, 17, 3), max_tokens=40, gate=Gate.NONE, gamma=1)
    async with open_room(output_buffer=2) as room, room.request_queue.admitted(request) as running:
        num_read = 0
        async for _ in running.deltas():
            num_read += 1
            await asyncio.sleep(0.005)
            # Two in the buffer, one that waits to get in, one that is on its way.
            assert room.verifier.sessions[0].num_verdicts <= num_read + 4
        assert num_read > 20


async def test_a_reader_that_takes_nothing_is_cut() -> None:
    async with open_room(output_buffer=1, slow_reader_s=0.05) as room:
        async with room.request_queue.admitted(REQUEST) as running, aclosing(running.deltas()) as deltas:
            await anext(deltas)
            await eventually(lambda: room.verifier.num_open == 1)
            # Its sessions are free although it has not come back yet.
            await room.freed()
            with pytest.raises(ServiceUnavailable, match=r"nothing was read for 0\.05 s"):
                await anext(deltas)
        assert room.request_queue.num_inside == 0


async def test_an_error_comes_after_the_deltas_before_it() -> None:
    async with open_room(dying_after(3)) as room, room.request_queue.admitted(REQUEST) as running:
        deltas, received = running.deltas(), list[Delta]()
        received.append(await anext(deltas))
        # Whatever happens has happened before the reader comes back.
        await eventually(lambda: len(room.verifier.sessions) == 3 and not room.drafter.num_open)
        with pytest.raises(ServiceUnavailable, match="the fake died"):
            await read_into(received, deltas)
        assert len(received) == 3
        assert tokens(received) == expected(REQUEST)[: len(tokens(received))]


async def test_a_reader_that_leaves_frees_everything(room: Room) -> None:
    async with room.request_queue.admitted(REQUEST) as running, aclosing(running.deltas()) as deltas:
        async for _ in deltas:
            break
    assert room.request_queue.num_inside == 0
    await room.freed()
    assert len(room.verifier.sessions) == 1


async def test_a_block_that_is_left_closes_what_was_not_closed(room: Room) -> None:
    async with room.request_queue.admitted(REQUEST) as running:
        deltas = running.deltas()
        await anext(deltas)
    await room.freed()
    await deltas.aclose()


async def test_a_cancelled_reader_frees_everything() -> None:
    async with open_room(Hanging) as room:
        reader = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.verifier.num_open == 1)
        reader.cancel()
        await asyncio.wait((reader,))
        assert reader.cancelled()
        assert room.request_queue.num_inside == 0
        await room.freed()


async def test_a_gateway_that_closes_leaves_no_text_that_looks_whole() -> None:
    async with open_room(Hanging) as room:
        reader = asyncio.create_task(read(room.request_queue))
        await eventually(lambda: room.verifier.num_open == 1)
        await room.request_queue.orchestrator.close()
        with pytest.raises(ServiceUnavailable, match="closed before the request was finished"):
            await reader


async def test_long_and_short_prompts(byte_level: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_room(tokenizer=byte_level) as room:
        for short in (1000, 3):
            monkeypatch.setattr(desk_module, "SHORT_CHARACTERS", short)
            assert await encode(room.request_queue, "the fox") == byte_level.encode("the fox")
        with pytest.raises(InvalidArgument, match="text: has 131073 characters; 131072 are the most"):
            await encode(room.request_queue, "a" * (512 * 256 + 1))


async def test_no_more_than_two_prompts_are_encoded_at_a_time(byte_level: TextTokenizer) -> None:
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
        prompts = [asyncio.create_task(room.request_queue.encode(work, 5000, "text")) for _ in range(5)]
        await eventually(lambda: running == 2)
        # A client that leaves makes no room for a third while its work goes on.
        prompts[0].cancel()
        # The event loop is free meanwhile, and short prompts pass by.
        assert await encode(room.request_queue, "the fox") == byte_level.encode("the fox")
        may_end.set()
        assert await asyncio.gather(*prompts[1:]) == [(1,)] * 4
        assert most == 2


async def test_a_target_without_a_tokenizer(room: Room) -> None:
    with pytest.raises(InvalidArgument, match="no tokenizer"):
        await encode(room.request_queue, "the fox")


async def test_the_default_length_ends_with_the_context(room: Room) -> None:
    lengths = [room.request_queue.default_max_tokens(num_prompt_tokens) for num_prompt_tokens in (3, 500, 512, 600)]
    assert lengths == [128, 12, 1, 1]
