"""One thread for many clients: who comes next, who is refused, and whose the time is of who has left."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from orchestrator.api.fair_thread import HALF_LIFE_S, FairThread
from specgate.errors import TooManySessions


class Desk:
    """A thread under a clock that work moves on; ``done`` are the names of what was run."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.done: list[str] = []
        self.thread = FairThread("test", 2, 3, lambda: self.now_s)
        self._may_end = threading.Event()
        self._num_tasks = 0

    async def put(self, client: str, seconds: float = 0.0, *, held: bool = False) -> "asyncio.Task[str]":
        """Put work of a client in line; what is ``held`` ends with ``let_go``."""
        task = asyncio.create_task(self.thread.run(client, self._work(client, seconds, held)))
        await asyncio.sleep(0)
        return task

    def _work(self, client: str, seconds: float, held: bool) -> Callable[[], str]:
        self._num_tasks += 1
        name = f"{client}{self._num_tasks}"

        def run() -> str:
            if held:
                self._may_end.wait()
            self.now_s += seconds
            self.done.append(name)
            return name

        return run

    def let_go(self) -> None:
        self._may_end.set()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_who_has_used_less_is_next_also_where_somebody_leaves_what_runs(desk: Desk, leaves: bool) -> None:
    first = await desk.put("a", 2.0, held=True)
    others = [await desk.put("a", 2.0), await desk.put("a", 2.0), await desk.put("b", 1.0)]
    if leaves:
        first.cancel()
        await asyncio.wait([first])
        assert desk.done == []
    desk.let_go()
    assert await asyncio.gather(*others) == ["a2", "a3", "b4"]
    assert desk.done == ["a1", "b4", "a2", "a3"]


async def test_used_time_is_forgotten(desk: Desk) -> None:
    await (await desk.put("a", 8.0))
    desk.now_s += HALF_LIFE_S + 1
    await (await desk.put("b", 5.0))
    waiting = [await desk.put("c", held=True), await desk.put("b"), await desk.put("a")]
    desk.let_go()
    await asyncio.gather(*waiting)
    assert desk.done == ["a1", "b2", "c3", "a5", "b4"]


async def test_places_are_each_clients_own(desk: Desk) -> None:
    waiting = [await desk.put("a", held=True), await desk.put("a"), await desk.put("a")]
    with pytest.raises(TooManySessions, match="2 of your requests"):
        await (await desk.put("a"))
    waiting.append(await desk.put("b"))
    # All places are taken; who has none gets the last one of who has more.
    with pytest.raises(TooManySessions, match="1 of your requests"):
        await (await desk.put("b"))
    waiting.append(await desk.put("c"))
    with pytest.raises(TooManySessions, match="2 of your requests"):
        await waiting.pop(2)
    # Nobody has more than one.
    with pytest.raises(TooManySessions, match="0 of your requests"):
        await (await desk.put("d"))
    # Who leaves gives its place back.
    left = waiting.pop(1)
    left.cancel()
    await asyncio.wait([left])
    waiting.append(await desk.put("a"))
    desk.let_go()
    assert await asyncio.gather(*waiting) == ["a1", "b5", "c7", "a9"]
    assert desk.done == ["a1", "b5", "c7", "a9"]


async def test_what_fails_fails_for_its_client(desk: Desk) -> None:
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await desk.thread.run("a", broken)
    assert await (await desk.put("a")) == "a1"
