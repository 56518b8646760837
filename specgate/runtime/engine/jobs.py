"""One generator on its way through the engine, and the future of its result."""

import logging
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from specgate.errors import InternalError, SpecgateError
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest

log = logging.getLogger(__name__)
T = TypeVar("T")
Task = Generator[ForwardRequest, ForwardResult, T]
"""Work for the engine: yields what it needs, receives the forward's result, returns its own."""


class Job:
    """A task, its future, and what it needs next."""

    __slots__ = ("future", "generator", "need")

    def __init__(self, generator: Task[Any]) -> None:
        self.generator = generator
        self.future: Future[Any] = Future()
        self.need: ForwardRequest

    def advance(self, outcome: ForwardResult | Exception | None) -> bool:
        """Hand an outcome to the task, None to begin. Return whether it goes on, with another need."""
        if self.future.cancelled():
            self.generator.close()
            return False
        try:
            if isinstance(outcome, Exception):
                self.need = self.generator.throw(outcome)
            else:
                self.need = self.generator.send(outcome) if outcome is not None else next(self.generator)
            return True
        except StopIteration as stop:
            self._settle(result=stop.value)
        except SpecgateError as error:
            self._settle(error=error)
        except Exception as error:
            log.exception("a task failed")
            self._settle(error=InternalError(type(error).__name__))
        return False

    def fail(self, error: SpecgateError) -> None:
        """Close the task; its future raises ``error``, unless its owner cancelled it."""
        self.generator.close()
        self._settle(error=error)

    def refuse(self, error: SpecgateError) -> None:
        """Let the future raise ``error``; the task is left alone, as the engine's thread may be in it."""
        self._settle(error=error)

    def _settle(self, *, result: Any = None, error: BaseException | None = None) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
