"""A replica that Serve stops, and the one that takes its place."""

import asyncio
from contextlib import suppress
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from orchestrator.cluster.running import any_runs

POLL_S = 0.5


async def wait_for_successor(timeout_s: float) -> None:
    """Return once another replica of the caller's deployment runs; at once where the whole application ends.

    Serve stops a replica and starts the next one at the same moment, so that for some seconds only the old one could
    answer. Waits ``timeout_s`` seconds at the most.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while await asyncio.to_thread(_is_last):  # noqa: ASYNC110 - Serve tells nobody, it is asked
                await asyncio.sleep(POLL_S)


def _is_last() -> bool:
    """Return whether nobody else serves yet what goes on being served."""
    context: Any = serve.get_replica_context()
    try:
        application = serve.status().applications.get(context.app_name)
    except (RayError, RayServeException):
        return False
    if application is None or application.status is ApplicationStatus.DELETING:
        return False
    deployment = application.deployments.get(context.deployment)
    return deployment is not None and not any_runs(deployment.replica_states)
