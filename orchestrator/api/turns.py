"""A request's place in the queue, and the request while it runs.

A running request's deltas pass through a bounded buffer. A reader that is slower than the models stops the decode
loop between rounds.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from orchestrator.api.metrics.requests import RequestTimer
from orchestrator.api.settings.settings import GatewaySettings
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.generation.generation import Generation
from specgate.errors import InternalError, InvalidArgument, ServiceUnavailable

OUT_OF_REACH = "no verifier is within reach now"
FAILED_HERE = "the request failed here; the log has the reason under its id"

_log = logging.getLogger(__name__)


class RunningRequest:
    """One admitted request. Iterate ``deltas()`` once.

    Args:
        on_delta: is told of each delta.
        on_failure: is told when there will be no more, for a reason of ours.
    """

    def __init__(
        self,
        generation: Generation,
        limits: GatewaySettings,
        on_delta: Callable[[Delta], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._on_delta = on_delta
        self._on_failure = on_failure
        self._generation = generation
        self._buffer: asyncio.Queue[Delta | Exception | None] = asyncio.Queue(limits.output_buffer)
        self._producer: asyncio.Task[None] | None = None

    @property
    def stats(self) -> GenerationStats:
        """Counted so far; complete from the last delta on."""
        return self._generation.stats

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield what is committed; the last delta has a finish reason. Closing it early frees both sessions.

        Raises:
            SpecgateError: see ``Generation``; after the deltas before it.
            ServiceUnavailable: the gateway was closed in mid-request.
        """
        self._producer = asyncio.create_task(self._produce())
        try:
            while (item := await self._buffer.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await self.aclose()
        if self._generation.finish_reason is None:
            raise ServiceUnavailable("the gateway was closed before the request was finished")

    async def aclose(self) -> None:
        """Free both sessions. Safe to call twice."""
        if self._producer is not None:
            self._producer.cancel()
            await asyncio.wait((self._producer,))
        await self._generation.aclose()

    async def _produce(self) -> None:
        end: Exception | None = None
        try:
            async with aclosing(self._generation.__aiter__()) as deltas:
                async for delta in deltas:
                    self._on_delta(delta)
                    await self._buffer.put(delta)
        except InvalidArgument as error:
            # A grammar that leads nowhere, for one: no failure of ours, so nobody is to be woken by it.
            end = error
        except Exception as error:
            self._on_failure()
            end = _told(error)
        await self._buffer.put(end)


def _told(error: Exception) -> Exception:
    """Return it without what no stranger should learn: which verifiers there are, at which addresses."""
    if isinstance(error, InternalError):
        told = type(error)(FAILED_HERE)
        # Who tells it to the client logs it, with its cause.
        told.__cause__ = error
        return told
    if not isinstance(error, ServiceUnavailable):
        return error
    _log.warning("a request lost its verifier: %s", error)
    return ServiceUnavailable(OUT_OF_REACH)


class Turn:
    """One request's place in the queue. Made by ``RequestQueue.reserved``."""

    def __init__(
        self,
        generation: Generation,
        run: Callable[[Generation, RequestTimer], AbstractAsyncContextManager[RunningRequest]],
        leave: Callable[[], None],
        timer: RequestTimer,
    ) -> None:
        self._generation = generation
        self._run = run
        self._timer = timer
        self._leave = leave
        self._is_inside = True

    @property
    def stats(self) -> GenerationStats:
        """Counted so far."""
        return self._generation.stats

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[RunningRequest]:
        """Wait for the turn; free everything when the block is left."""
        try:
            async with self._run(self._generation, self._timer) as running:
                yield running
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the place back. Safe to call twice."""
        if self._is_inside:
            self._is_inside = False
            self._timer.end(self.stats)
            self._leave()
