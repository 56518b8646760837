"""The Ray cluster under the application: joined where there is one, started on this machine where there is none."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray
from ray import serve

from orchestrator.cluster.answers import answer_within
from orchestrator.cluster.progress import NAMESPACE
from orchestrator.cluster.token import make_token
from specgate.errors import ServiceUnavailable

ADDRESS_VARIABLE = "RAY_ADDRESS"
LEAVE_S = 10.0


@contextmanager
def on_cluster() -> Iterator[bool]:
    """Connect to Ray; yield whether the cluster is ours. What was started here is ended with the block.

    Raises:
        ServiceUnavailable: the cluster that is named cannot be joined, or none can be started here.
    """
    ours = not _join()
    if ours:
        _start()
    served_before = bool(serve.status().proxies)
    try:
        yield ours
    finally:
        if not (ours or served_before):
            # A cluster that is gone has nothing to be cleared away.
            with suppress(ServiceUnavailable):
                answer_within(LEAVE_S, _end_idle_serve)
        ray.shutdown()


def _end_idle_serve() -> None:
    if not serve.status().applications:
        serve.shutdown()


def _join() -> bool:
    """Return whether there is a cluster: the one that the environment names, or the latest of this machine.

    RAY_ADDRESS=local asks for one of our own, also where others run.
    """
    if os.environ.get(ADDRESS_VARIABLE) == "local":
        return False
    try:
        _init("auto")
    except ConnectionError as error:
        address = os.environ.get(ADDRESS_VARIABLE)
        if address:
            raise ServiceUnavailable(f"the Ray cluster at {address} cannot be joined: {_line(error)}") from None
        return False
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise ServiceUnavailable(f"the Ray cluster cannot be joined: {_line(error)}") from None
    return True


def _start() -> None:
    # Who reaches Ray's ports runs code on it, and it opens them on all interfaces. A local Ray asks for a token by
    # itself, unless the environment says otherwise, but would write a new one so that every user can read it.
    try:
        make_token()
        _init("local")
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ServiceUnavailable(f"Ray cannot be started on this machine: {_line(error)}") from None


def _init(address: str) -> None:
    # A dashboard is started with a cluster only, never where one is joined.
    ray.init(address, namespace=NAMESPACE, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
