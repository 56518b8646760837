"""One response at a time, from whichever thread, and none after the end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from specgate.service.outbox import Outbox
from tests.support.patience import patience


class Wire:
    """Takes one response at a time, as gRPC does, and a moment for each."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.busy = False
        self.free = asyncio.Event()
        self.free.set()

    async def write(self, message: str) -> None:
        assert not self.busy
        self.busy = True
        try:
            if message == "broken":
                raise RuntimeError("the peer is gone")
            await asyncio.sleep(0)
            await self.free.wait()
            self.sent.append(message)
        finally:
            self.busy = False


def post_from_a_thread(outbox: Outbox, message: str) -> None:
    thread = threading.Thread(target=outbox.post, args=(message,))
    thread.start()
    thread.join()


@asynccontextmanager
async def held() -> AsyncIterator[tuple[Wire, Outbox]]:
    """An outbox whose first response stays on the wire until ``free`` is set."""
    wire = Wire()
    wire.free.clear()
    async with Outbox(wire.write) as outbox:
        outbox.post("held")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.busy
        yield wire, outbox


async def settled() -> None:
    """Return when nothing is being sent any more."""
    await asyncio.sleep(0)
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def test_two_are_never_sent_at_once() -> None:
    wire = Wire()
    async with Outbox(wire.write) as outbox:
        post_from_a_thread(outbox, "a")
        await outbox.send("b")
        await settled()
    assert sorted(wire.sent) == ["a", "b"]


async def test_of_what_a_slow_reader_keeps_waiting_the_last_two_are_sent() -> None:
    async with held() as (wire, outbox):
        for number in range(100):
            post_from_a_thread(outbox, str(number))
        await asyncio.sleep(0)
        wire.free.set()
        await settled()
    assert wire.sent == ["held", "98", "99"]


async def test_what_nobody_waits_for_fails_in_silence_and_what_is_awaited_does_not() -> None:
    wire = Wire()
    async with Outbox(wire.write) as outbox:
        outbox.post("broken")
        await settled()
        with pytest.raises(RuntimeError, match="gone"):
            await outbox.send("broken")
        await outbox.send("next")
    assert wire.sent == ["next"]


async def test_nothing_is_sent_after_the_end() -> None:
    async with held() as (wire, outbox):
        assert wire.sent == []
    post_from_a_thread(outbox, "late")
    await asyncio.sleep(0)
    wire.free.set()
    async with patience():
        await settled()
    assert wire.sent == []


def test_a_loop_that_is_closed_takes_nothing() -> None:
    wire = Wire()

    async def open_one() -> Outbox:
        async with Outbox(wire.write) as outbox:
            return outbox

    asyncio.run(open_one()).post("late")
    assert wire.sent == []
