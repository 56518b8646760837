"""Asking a cluster that may be gone: Ray then raises one of many errors, or waits for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from specgate.errors import ServiceUnavailable

T = TypeVar("T")
LOST = (RayError, RayServeException, RuntimeError, OSError)
"""What Ray raises where its cluster is gone; a TimeoutError is an OSError."""


def answer_within(timeout_s: float, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns; it is left alone in its thread where it does not return in time.

    Raises:
        ServiceUnavailable: the cluster does not answer.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="ask-ray", daemon=True).start()
    try:
        return answer.result(timeout_s)
    except LOST as error:
        said = str(error).strip().partition("\n")[0]
        raise ServiceUnavailable(f"the Ray cluster does not answer: {said or type(error).__name__}") from None
