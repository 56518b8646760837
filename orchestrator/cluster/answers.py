"""Questions to a cluster that may be gone: then Ray raises one of many errors, or waits for ever."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from specgate.errors import ServiceUnavailable

T = TypeVar("T")
SERVE_CONTROLLER = "SERVE_CONTROLLER_ACTOR"
SERVE_NAMESPACE = "serve"
LOST = (RayError, RayServeException, RuntimeError, OSError)
"""What Ray raises without its cluster; a TimeoutError is an OSError."""


def answer_within(timeout_s: float, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns. If it does not return in time, its thread goes on alone.

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
        raise ServiceUnavailable(f"the Ray cluster does not answer: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of the message of ``error``, else its name. Never empty."""
    return lines_of(error)[0]


def lines_of(error: BaseException) -> list[str]:
    """Return the lines of the message of ``error``, else its name alone. Never empty."""
    return str(error).strip().splitlines() or [type(error).__name__]


def serve_controller() -> ActorHandle[Any] | None:
    """Return the controller of Ray Serve on the cluster of this process, None if none runs."""
    try:
        return ray.get_actor(SERVE_CONTROLLER, namespace=SERVE_NAMESPACE)
    except ValueError:
        return None
