"""Whether replicas of a deployment run or are being started. Serve's controller, which checks their health, knows."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from specgate.errors import ServiceUnavailable, reason_of

ANSWER_S = 2.0
FRESH_S = 0.25
"""An answer of the controller is reused for so long."""
POLL_S = 0.5

_log = logging.getLogger(__name__)


class Presence(Enum):
    """The state of a deployment's replicas; ``COMING``: none runs, and Serve starts some."""

    RUNNING = auto()
    COMING = auto()
    GONE = auto()
    UNKNOWN = auto()


class Replicas:
    """The replicas of one deployment, busy or not. Asking takes no lease.

    Args:
        role: the name of the replicas in messages.
    """

    def __init__(self, role: str, handle: DeploymentHandle[Any]) -> None:
        self._role = role
        self._app_name = handle.app_name
        self._deployment_name = handle.deployment_name
        self._asking: asyncio.Task[Presence] | None = None
        self._fresh_until_s = 0.0
        self._missing_since_s: float | None = None
        self._missing_at_s = 0.0

    async def check(self) -> None:
        """Raise ServiceUnavailable unless a replica runs."""
        if not await self.any_running():
            raise ServiceUnavailable(f"no {self._role} is there")

    async def any_running(self, answer_s: float = ANSWER_S) -> bool:
        """Return whether a replica runs; also False where Serve does not say so within ``answer_s`` seconds."""
        return await self._presence(answer_s) is Presence.RUNNING

    async def expected(self, within_s: float) -> bool:
        """Return whether a replica runs, or may within ``within_s`` seconds; also True where Serve does not say.

        What Serve starts is expected, whatever it does, until none has run for that long: a replica may find no node,
        or fail again and again.
        """
        presence, now_s = await self._presence(ANSWER_S), time.monotonic()
        if presence in (Presence.RUNNING, Presence.UNKNOWN):
            self._missing_since_s = None
            return True
        # If nobody has checked for long, a replica may have run in between.
        if self._missing_since_s is None or now_s - self._missing_at_s > within_s:
            self._missing_since_s = now_s
        self._missing_at_s = now_s
        return presence is Presence.COMING and now_s - self._missing_since_s < within_s

    async def _presence(self, answer_s: float) -> Presence:
        # All callers share one question to the controller, so that a lost controller blocks one thread only. They share
        # its answer, too, so that many waiting requests do not ask as often.
        if self._asking is None or (self._asking.done() and time.monotonic() >= self._fresh_until_s):
            self._asking = asyncio.create_task(self._ask_controller())
        asking = self._asking
        await asyncio.wait({asking}, timeout=answer_s)
        return asking.result() if asking.done() else Presence.UNKNOWN

    async def _ask_controller(self) -> Presence:
        try:
            return await asyncio.to_thread(self._ask)
        finally:
            self._fresh_until_s = time.monotonic() + FRESH_S

    def _ask(self) -> Presence:
        try:
            application = serve.status().applications.get(self._app_name)
        except (RayError, RayServeException) as error:
            _log.warning("Ray Serve does not say which %ss run: %s", self._role, reason_of(error))
            return Presence.UNKNOWN
        deployment = application.deployments.get(self._deployment_name) if application else None
        if deployment is None or deployment.status == "DEPLOY_FAILED":
            return Presence.GONE
        # Serve starts a replica for it: in place of a lost one, or because a request waits for a deployment at zero.
        return Presence.RUNNING if any_runs(deployment.replica_states) else Presence.COMING


def any_runs(replica_states: Iterable[str]) -> bool:
    """Return whether one of the states of a deployment's replicas, as Serve's status has them, is running."""
    return any(state == "RUNNING" for state in replica_states)


async def wait_for_successor(timeout_s: float) -> None:
    """Return once another replica of the caller's deployment runs; at once where the whole application ends.

    Serve stops a replica and starts the next one at the same moment, so that for some seconds only the old one could
    answer. Waits ``timeout_s`` seconds at the most.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while await asyncio.to_thread(_is_last):  # noqa: ASYNC110 - Serve sends no event
                await asyncio.sleep(POLL_S)


def _is_last() -> bool:
    """Return whether the application goes on and no other replica runs yet."""
    context: Any = serve.get_replica_context()
    try:
        application = serve.status().applications.get(context.app_name)
    except (RayError, RayServeException):
        return False
    if application is None or application.status is ApplicationStatus.DELETING:
        return False
    deployment = application.deployments.get(context.deployment)
    return deployment is not None and not any_runs(deployment.replica_states)
