"""An event loop in a thread of its own: what a test that is no coroutine keeps running beside itself."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from orchestrator.terminal.background import BackgroundLoop
from tests.support.patience import PATIENCE_S

T = TypeVar("T")


class LoopThread(BackgroundLoop):
    """Runs coroutines for another thread, each within a time; use it as ``with``."""

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Return what ``work`` returns. Raises TimeoutError, and cancels it, where it takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context, in one task from its beginning to its end."""
        entered, left = asyncio.Queue[T](), asyncio.Event()

        async def hold() -> None:
            async with context as value:
                entered.put_nowait(value)
                await left.wait()

        holding = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        holding.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            yield self.run(_first(entered, asyncio.wrap_future, holding))
        finally:
            self._loop.call_soon_threadsafe(left.set)
            holding.result(PATIENCE_S)


async def _first(entered: "asyncio.Queue[T]", wrap: Any, holding: Any) -> T:
    """Return the context's value; raise what entering it raised."""
    value, ended = asyncio.ensure_future(entered.get()), wrap(holding)
    await asyncio.wait((value, ended), return_when=asyncio.FIRST_COMPLETED)
    if not value.done():
        value.cancel()
        ended.result()
    return value.result()
