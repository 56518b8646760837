"""One response at a time, from whichever thread, and none after the end."""

import asyncio
import threading

import pytest

from specgate.service.outbox import Outbox


class Wire:
    """Takes one response at a time, as gRPC does, and a moment for each."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.busy = False
        self.hold: asyncio.Event | None = None

    async def write(self, message: str) -> None:
        assert not self.busy
        self.busy = True
        try:
            if message == "broken":
                raise RuntimeError("the peer is gone")
            await (self.hold.wait() if self.hold is not None else asyncio.sleep(0))
            self.sent.append(message)
        finally:
            self.busy = False


def post_from_a_thread(outbox: Outbox, *messages: str) -> None:
    def post() -> None:
        for message in messages:
            outbox.post(message)

    thread = threading.Thread(target=post)
    thread.start()
    thread.join()


async def post_held(wire: Wire, outbox: Outbox) -> None:
    """Post a response that stays on the wire until ``hold`` is set."""
    outbox.post("held")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.busy


async def settled(outbox: Outbox) -> None:
    await asyncio.sleep(0)
    if outbox._posting is not None:
        await outbox._posting


async def test_two_are_never_sent_at_once() -> None:
    wire = Wire()
    async with Outbox(wire.write) as outbox:
        post_from_a_thread(outbox, "a")
        await outbox.send("b")
        await settled(outbox)
    assert sorted(wire.sent) == ["a", "b"]


async def test_of_what_a_slow_reader_keeps_waiting_the_last_one_is_sent() -> None:
    wire = Wire()
    wire.hold = asyncio.Event()
    async with Outbox(wire.write) as outbox:
        await post_held(wire, outbox)
        post_from_a_thread(outbox, *(f"{number}" for number in range(100)))
        await asyncio.sleep(0)
        wire.hold.set()
        await settled(outbox)
    assert wire.sent == ["held", "99"]


async def test_what_goes_behind_the_last_one_is_sent_too() -> None:
    wire = Wire()
    wire.hold = asyncio.Event()
    async with Outbox(wire.write) as outbox:
        await post_held(wire, outbox)
        outbox.post("old")
        outbox.post("behind old", behind=True)
        outbox.post("new")
        outbox.post("behind new", behind=True)
        await asyncio.sleep(0)
        wire.hold.set()
        await settled(outbox)
    assert wire.sent == ["held", "new", "behind new"]


async def test_what_nobody_waits_for_fails_in_silence_and_what_is_awaited_does_not() -> None:
    wire = Wire()
    async with Outbox(wire.write) as outbox:
        outbox.post("broken")
        await settled(outbox)
        with pytest.raises(RuntimeError, match="gone"):
            await outbox.send("broken")
        await outbox.send("next")
    assert wire.sent == ["next"]


async def test_nothing_is_sent_after_the_end() -> None:
    wire = Wire()
    wire.hold = asyncio.Event()
    async with Outbox(wire.write) as outbox:
        await post_held(wire, outbox)
    post_from_a_thread(outbox, "late")
    await asyncio.sleep(0)
    wire.hold.set()
    await asyncio.sleep(0)
    assert wire.sent == []
    assert outbox._posting is not None
    assert outbox._posting.done()


def test_a_loop_that_is_closed_takes_nothing() -> None:
    wire = Wire()

    async def open_one() -> Outbox:
        async with Outbox(wire.write) as outbox:
            return outbox

    asyncio.run(open_one()).post("late")
    assert wire.sent == []
