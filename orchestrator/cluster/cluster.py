"""The application's Ray cluster: a running one is joined, else one is started on this machine."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO

import ray
from ray import serve
from ray._private import ray_constants

from orchestrator.api.settings.keys import one_line
from orchestrator.cluster.address import ADDRESS_VARIABLE, LOCAL, Say, asked_for
from orchestrator.cluster.answers import answer_within, serve_controller
from orchestrator.cluster.find import Head, find_head
from orchestrator.cluster.listeners import is_on_loopback_alone
from orchestrator.cluster.progress import NAMESPACE
from orchestrator.cluster.token import MODE_VARIABLE, OPEN_MODE, TOKEN_MODE, make_token, mode_of_environment, use_mode
from specgate.errors import ServiceUnavailable

LEAVE_S = 10.0
DANGER = "whoever reaches its ports may run code"
_ROUTES_OUTWARDS = ray_constants.ENABLE_RAY_CLUSTER
"""Whether Ray knows a node of this platform by the address that routes outwards; on macOS it is 127.0.0.1."""


@contextmanager
def on_cluster(say: Say, *, insecure: bool = False) -> Iterator[bool]:
    """Connect to Ray; yield whether the cluster was started here. Then it ends with the block.

    Args:
        say: gets the clusters that were given up, and what is not secure.
        insecure: whether Ray may do without a token.

    Raises:
        ServiceUnavailable: the cluster that is named cannot be joined, none can be started here, or it would ask for
            no token.
    """
    head = find_head(say)
    if head is None:
        _start(say, insecure=insecure)
    else:
        _join(head, say, insecure=insecure)
    try:
        served_before = serve_controller() is not None
        try:
            yield head is None
        finally:
            if head is not None and not served_before:
                _clear_away()
    finally:
        ray.shutdown()


@contextmanager
def visiting_cluster(say: Say, *, insecure: bool = False) -> Iterator[None]:
    """Connect to the Ray cluster that ``orchestrator serve`` would join, without a change to it.

    Raises:
        ServiceUnavailable: there is none, it cannot be joined, or it asks for no token and ``insecure`` is not set.
    """
    head = find_head(say)
    if head is None:
        if asked_for() == LOCAL:
            raise ServiceUnavailable(f"{ADDRESS_VARIABLE} is {LOCAL}, which looks for no running cluster: unset it")
        raise ServiceUnavailable("no Ray cluster runs on this machine, and RAY_ADDRESS names none")
    _join(head, say, insecure=insecure)
    try:
        yield
    finally:
        ray.shutdown()


def _clear_away() -> None:
    """End the Serve that we started, unless others use it, and leave the cluster."""
    # Serve's controller kills itself, which Ray reports on standard output as calls to a dead actor. In a cluster that
    # is gone there is nothing to end.
    with redirect_stdout(StringIO()), suppress(ServiceUnavailable):
        answer_within(LEAVE_S, _end_idle_serve)
        # Inside the block, which hides Ray's output; ``on_cluster`` shuts down otherwise.
        ray.shutdown()


def _end_idle_serve() -> None:
    if not serve.status().applications:
        serve.shutdown()


def _join(head: Head, say: Say, *, insecure: bool) -> None:
    if not head.wants_token:
        out = f"start it with {MODE_VARIABLE}={TOKEN_MODE}, or have a Ray of our own: {ADDRESS_VARIABLE}={LOCAL}"
        _permit(f"the Ray cluster at {head.address} asks for no token", out, say, insecure=insecure)
    use_mode(TOKEN_MODE if head.wants_token else OPEN_MODE)
    try:
        _init(head.address, on_loopback=is_on_loopback_alone(head.address))
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ServiceUnavailable(f"the Ray cluster at {head.address} cannot be joined: {one_line(error)}") from None


def _start(say: Say, *, insecure: bool) -> None:
    # A local Ray asks for a token unless the environment says otherwise, but makes a new one readable by every user.
    mode = mode_of_environment()
    has_token = mode.lower() == TOKEN_MODE
    if not has_token:
        problem = f"with {MODE_VARIABLE}={mode} a Ray of our own asks for no token"
        _permit(problem, f"unset {MODE_VARIABLE}", say, insecure=insecure)
    use_mode(TOKEN_MODE if has_token else OPEN_MODE)
    try:
        if has_token:
            make_token()
        _init(LOCAL, on_loopback=True)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ServiceUnavailable(f"Ray cannot be started on this machine: {one_line(error)}") from None


def _permit(problem: str, way_out: str, say: Say, *, insecure: bool) -> None:
    """Raise ServiceUnavailable unless ``insecure`` permits a Ray without a token; then show what that means."""
    if not insecure:
        raise ServiceUnavailable(f"{problem}, and {DANGER}: {way_out}, or permit it with --insecure")
    say(f"{problem}, and {DANGER}: --insecure permits it")


def _init(address: str, *, on_loopback: bool) -> None:
    # A Ray whose node address is 127.0.0.1 listens there, any other one on every interface. On Linux Ray replaces a
    # given 127.0.0.1 by the outward address, unless this flag says that there is no cluster of machines.
    ray_constants.ENABLE_RAY_CLUSTER = _ROUTES_OUTWARDS and not on_loopback
    # Only a new cluster could start a dashboard, not one that is joined.
    ray.init(address, namespace=NAMESPACE, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
