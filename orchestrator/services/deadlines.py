"""How long to wait for an answer before silence counts as death."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specgate.types import DraftRequest, Proposal

T = TypeVar("T")
STALL_S = 0.05
"""A timer that rings so much too late was delayed by a busy event loop, such as one that writes to a slow console."""
MAX_STALLS = 5
"""Delayed timers that are set again; then silence counts, busy or not."""


class Deadline:
    """Waits ``first_s`` for the first answer, which includes a prefill.

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
        # The first answer does not count: with a long prompt it would make a hang look normal.
        self._slowest_s = 0.0 if self._slowest_s is None else max(self._slowest_s, seconds)
        self.limit_s = max(self._floor_s, self._factor * self._slowest_s)


class DraftDeadline:
    """Waits ``first_s`` for a draft until the time of a draft is known, then ``factor`` times that time.

    The time is the larger of two: that of the slowest draft so far, and that of one token times the tokens that this
    request sends and asks for. The limit is at least ``floor_s``, and else at most ``first_s``. All in seconds.

    Requested tokens count, not received ones: the number of those may depend on their values, and whether a proposal is
    used must not. The first draft includes a prefill, so it counts with the time that the drafter reports. Prepared
    proposals do not count.
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
        """Return how long a draft may take; ``num_tokens`` are those that the request sends and asks for."""
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
    """Return the answer. Raises TimeoutError, with a message, where it takes longer than ``limit_s``.

    Time in which the event loop was busy with something else does not count.
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
    """Ends ``bound`` after ``limit_s`` seconds of a running event loop."""

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
