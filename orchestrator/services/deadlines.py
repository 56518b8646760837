"""How long to wait for an answer before silence counts as death."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specgate.types import DraftRequest, Proposal

T = TypeVar("T")
STALL_S = 0.05
"""A timer that is so much too late was held up by somebody who kept the event loop, a slow console for one."""
MAX_STALLS = 5


class Deadline:
    """Waits ``first_s`` for a first answer, which has a prefill before it, then in proportion to what was seen.

    Later answers may take ``factor`` times the slowest one so far, and ``floor_s`` in any case. All in seconds.
    """

    def __init__(
        self, first_s: float, floor_s: float, factor: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limit_s = first_s
        self._floor_s = floor_s
        self._factor = factor
        self._clock = clock
        self._slowest_s: float | None = None

    async def wait(self, answer: Awaitable[T]) -> T:
        """Return the answer. Raises TimeoutError where it takes longer than ``limit_s``, as ``within`` counts it."""
        start_s = self._clock()
        result = await within(self.limit_s, answer)
        self._learn(self._clock() - start_s)
        return result

    def _learn(self, seconds: float) -> None:
        # The first one counts for nothing: a long prompt would make a hang look normal.
        self._slowest_s = 0.0 if self._slowest_s is None else max(self._slowest_s, seconds)
        self.limit_s = max(self._floor_s, self._factor * self._slowest_s)


class DraftDeadline:
    """Waits ``first_s`` for a draft until it is known how long one takes, then ``factor`` times that: as long as the
    slowest one took, or as its tokens would make of those that are told and asked for now, whichever is more.
    ``floor_s`` in any case, else never more than ``first_s``. All in seconds.

    By tokens that are asked for, not by those that come: how many these are may depend on their values, and whether a
    proposal is used must not. The first draft has a prefill before it, so it counts by what its drafter says that it
    took. What was prepared says nothing.
    """

    def __init__(
        self, first_s: float, floor_s: float, factor: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._first_s = first_s
        self._floor_s = floor_s
        self._factor = factor
        self._clock = clock
        self._is_first = True
        self._slowest_s = self._token_s = 0.0

    def limit_s(self, num_tokens: int = 1) -> float:
        """Return how long a draft may take, of so many tokens with those that it is told of before."""
        if not self._slowest_s:
            return self._first_s
        expected_s = max(self._slowest_s, self._token_s * num_tokens)
        return max(self._floor_s, min(self._first_s, self._factor * expected_s))

    async def wait(self, draft: Awaitable[Proposal], request: DraftRequest) -> Proposal:
        """Return the draft that was requested. Raises TimeoutError as ``Deadline.wait`` does."""
        start_s, num_reported = self._clock(), len(request.token_ids)
        proposal = await within(self.limit_s(num_reported + request.gamma), draft)
        self._learn(proposal, self._clock() - start_s, num_reported)
        return proposal

    def _learn(self, proposal: Proposal, seconds: float, num_reported: int) -> None:
        if self._is_first:
            self._is_first, seconds = False, min(seconds, proposal.draft_us / 1e6)
        if len(proposal) and proposal.num_prepared == len(proposal):
            return
        self._slowest_s = max(self._slowest_s, seconds)
        if not proposal.num_prepared:
            self._token_s = max(self._token_s, seconds / max(num_reported + len(proposal), 1))


async def within(limit_s: float, answer: Awaitable[T]) -> T:
    """Return the answer. Raises TimeoutError, which says so, where it takes longer than ``limit_s``.

    Time in which nobody could look whether it has come, because the event loop was kept, does not count.
    """
    try:
        async with asyncio.timeout(None) as bound:
            timer = _Timer(bound, limit_s)
            try:
                return await answer
            finally:
                timer.cancel()
    except TimeoutError:
        if bound.expired():
            raise TimeoutError(f"no answer came within {limit_s:.3g} s") from None
        raise


class _Timer:
    """Lets ``bound`` end after ``limit_s`` of an event loop that runs."""

    def __init__(self, bound: asyncio.Timeout, limit_s: float) -> None:
        self._bound = bound
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._num_stalls = 0
        self._handle = self._loop.call_later(limit_s, self._ring)

    def cancel(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        now_s = self._loop.time()
        if now_s - self._handle.when() > STALL_S and self._num_stalls < MAX_STALLS:
            self._num_stalls += 1
            self._handle = self._loop.call_later(self._limit_s, self._ring)
        else:
            self._bound.reschedule(now_s)
