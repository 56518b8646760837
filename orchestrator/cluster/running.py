"""Whether a deployment has replicas that run: asked of Serve's controller, which checks each one's health."""

import asyncio
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from specgate.errors import ServiceUnavailable, reason_of

ANSWER_S = 2.0

_log = logging.getLogger(__name__)


class Replicas:
    """The replicas of one deployment, busy or not. Asking takes no lease.

    Args:
        role: what messages call the replicas.
    """

    def __init__(self, role: str, handle: DeploymentHandle[Any]) -> None:
        self._role = role
        self._app_name = handle.app_name
        self._deployment_name = handle.deployment_name
        self._asking: asyncio.Task[bool] | None = None

    async def check(self) -> None:
        """Raise ServiceUnavailable unless a replica runs."""
        if not await self.any_running():
            raise ServiceUnavailable(f"no {self._role} is there")

    async def any_running(self, within_s: float = ANSWER_S) -> bool:
        """Return whether a replica runs; also False where Serve does not say so within ``within_s`` seconds."""
        # All who ask share one question: a thread that waits for a lost controller is not joined by a second one.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask))
        asking = self._asking
        await asyncio.wait({asking}, timeout=within_s)
        return asking.done() and asking.result()

    def _ask(self) -> bool:
        try:
            application = serve.status().applications.get(self._app_name)
        except (RayError, RayServeException) as error:
            _log.warning("Ray Serve does not say which %ss run: %s", self._role, reason_of(error))
            return False
        deployment = application.deployments.get(self._deployment_name) if application else None
        return deployment is not None and any(state == "RUNNING" for state in deployment.replica_states)
