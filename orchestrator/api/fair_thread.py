"""Work of many clients on one thread. The client that has used it least lately is next, so no client delays others."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from specgate.errors import TooManySessions

HALF_LIFE_S = 10.0
"""Used time counts half as much after so long. A client that used the thread a little soon counts as a newcomer."""
FORGOTTEN_S = 0.01
"""Less used time than this is forgotten. It makes no difference, and there may be any number of addresses."""

T = TypeVar("T")


class _Waiting(NamedTuple):
    client: str
    work: Callable[[], Any]
    answer: "asyncio.Future[Any]"


class FairThread:
    """Runs one piece of work at a time. It serves one event loop.

    Args:
        max_waiting_each: pieces of work of one client that may wait.
        max_waiting: pieces of work of all clients that may wait. When that is reached, the client with the most loses
            its last one to a client with fewer.
        clock: returns seconds.
    """

    def __init__(
        self, name: str, max_waiting_each: int, max_waiting: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._max_waiting_each = max_waiting_each
        self._max_waiting = max_waiting
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        self._used_s: dict[str, float] = {}
        self._halved_at_s = 0.0

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises. The work of one client runs in order of arrival.

        Raises:
            TooManySessions: too much work waits, of this client or of all.
        """
        num_own = sum(one.client == client for one in self._waiting)
        if num_own >= self._max_waiting_each:
            raise _too_many(num_own)
        if len(self._waiting) >= self._max_waiting:
            self._make_room(num_own)
        waiting = _Waiting(client, work, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._begin()
        try:
            answer: T = await waiting.answer
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return answer

    def _make_room(self, num_own: int) -> None:
        counts = Counter(one.client for one in self._waiting)
        client, most = counts.most_common(1)[0]
        if most <= num_own + 1:
            raise _too_many(num_own)
        last = next(one for one in reversed(self._waiting) if one.client == client)
        self._waiting.remove(last)
        last.answer.set_exception(_too_many(most))

    def _begin(self) -> None:
        if self._is_busy or not self._waiting:
            return
        self._halve()
        chosen = min(self._waiting, key=lambda one: self._used_s.get(one.client, 0.0))
        self._waiting.remove(chosen)
        self._is_busy = True
        start_s = self._clock()
        running = asyncio.get_running_loop().run_in_executor(self._thread, chosen.work)
        # Also if the client leaves: the thread goes on with the work, and that time is the client's.
        running.add_done_callback(partial(self._end, chosen, start_s))

    def _end(self, one: _Waiting, start_s: float, done: "asyncio.Future[Any]") -> None:
        self._used_s[one.client] = self._used_s.get(one.client, 0.0) + self._clock() - start_s
        self._is_busy = False
        error = done.exception()
        if one.answer.done():
            pass
        elif error is not None:
            one.answer.set_exception(error)
        else:
            one.answer.set_result(done.result())
        self._begin()

    def _halve(self) -> None:
        if (now_s := self._clock()) - self._halved_at_s > HALF_LIFE_S:
            self._halved_at_s = now_s
            self._used_s = {client: used_s / 2 for client, used_s in self._used_s.items() if used_s > FORGOTTEN_S}


def _too_many(num_own: int) -> TooManySessions:
    return TooManySessions(f"{num_own} of your requests wait to be checked, beside those of others; come back later")
