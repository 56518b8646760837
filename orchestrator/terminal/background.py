"""An event loop in a thread, so that the main thread can wait for input and Ctrl-C."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for the main thread, in ``with``. Their background tasks live on between calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; ``work`` has been cancelled and has ended.
        """
        started: Future[asyncio.Task[T]] = Future()
        ended = threading.Event()

        def start() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            started.set_result(task)

        self._loop.call_soon_threadsafe(start)
        try:
            ended.wait()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(started.result().cancel)
            ended.wait()
            raise
        return started.result().result()

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context. Raises what entering and leaving it raise, and as ``run`` does."""
        stack = AsyncExitStack()
        value = self.run(stack.enter_async_context(context))
        try:
            yield value
        finally:
            self.run(stack.aclose())
