"""A pool of services that somebody else has started: a list of addresses, with health checks."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.decode.ports import Lease, SessionCost
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.rpc.channel import open_channel
from specgate.rpc.endpoint import join_endpoint, split_endpoint
from specgate.rpc.tls import ClientTlsFiles

HEALTH_TIMEOUT_S = 1.0
RECHECK_INTERVAL_S = 1.0
ALIKE = 1.25
"""Costs that differ by less are taken to be equal: other processes measured others, and must not all choose alike."""

HealthCheck = Callable[[str], Awaitable[bool]]
"""Returns whether the service at an endpoint takes sessions now. Never raises for a service that does not answer."""


def grpc_health(tls: ClientTlsFiles | None = None, timeout_s: float = HEALTH_TIMEOUT_S) -> HealthCheck:
    """Return a check by ``grpc.health.v1``, over a connection of its own.

    A stopped process accepts connections and never answers: it counts as unhealthy after ``timeout_s``.
    """

    async def check(endpoint: str) -> bool:
        async with open_channel(endpoint, tls) as channel:
            try:
                # The stubs of grpc_health know neither its attributes nor its asynchronous side.
                stub: Any = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    return check


class StaticPool:
    """Leases the endpoint where one more session costs least, by default the one with the fewest of our sessions; a
    failed one only after a health check.

    Args:
        endpoints: HOST:PORT each.
        health: checks a failed endpoint, by default with ``grpc.health.v1`` in plain text.
        field: the name of the list in error messages, such as the flag that set it.
        recheck_interval_s: between two health checks of one failed endpoint.

    Raises:
        InvalidArgument: there is no endpoint, or one is not HOST:PORT; the message names ``field``.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        health: HealthCheck | None = None,
        *,
        field: str = "endpoints",
        recheck_interval_s: float = RECHECK_INTERVAL_S,
    ) -> None:
        if not endpoints:
            raise InvalidArgument(field, "is empty; at least 1 HOST:PORT is needed")
        self._load = dict.fromkeys((_checked(endpoint, field) for endpoint in endpoints), 0)
        self._health = health or grpc_health()
        self._field = field
        self._recheck_interval_s = recheck_interval_s
        self._recoveries: dict[str, _Recovery] = {}

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        """Return a lease on the endpoint where one more session costs least. No connection is made here.

        Raises:
            ServiceUnavailable: all endpoints have failed, and no check has found one healthy; names them.
        """
        if not self._candidates():
            # An endpoint that has just failed may be healthy: its first check is worth the wait, later ones are not.
            await asyncio.gather(*(recovery.checked.wait() for recovery in self._recoveries.values()))
        candidates = self._candidates()
        if not candidates:
            raise ServiceUnavailable(f"{self._field}: none of {', '.join(self._load)} is healthy")
        costs = {one: cost(one, self._load[one]) if cost else self._load[one] for one in candidates}
        most = min(costs.values()) * (ALIKE if cost else 1.0)
        endpoint = random.choice([one for one in candidates if costs[one] <= most])
        self._load[endpoint] += 1
        return Lease(endpoint)

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give a lease back. A failed endpoint is skipped until a health check finds it serving."""
        self._load[lease.endpoint] -= 1
        if failed and lease.endpoint not in self._recoveries:
            self._recoveries[lease.endpoint] = _Recovery(self._recover(lease.endpoint))

    async def close(self) -> None:
        """Stop all health checks. Safe to call twice."""
        recoveries = list(self._recoveries.values())
        for recovery in recoveries:
            await recovery.cancel()

    def _candidates(self) -> list[str]:
        return [endpoint for endpoint in self._load if endpoint not in self._recoveries]

    async def _recover(self, endpoint: str) -> None:
        while not await self._is_healthy(endpoint):
            self._recoveries[endpoint].checked.set()
            await asyncio.sleep(self._recheck_interval_s)
        self._recoveries.pop(endpoint).checked.set()

    async def _is_healthy(self, endpoint: str) -> bool:
        try:
            return await self._health(endpoint)
        except InvalidArgument:
            # TLS files that are being replaced; the next check may find complete ones.
            return False


class _Recovery:
    """Checks a failed endpoint until it is healthy; ``checked`` is set after the first check."""

    def __init__(self, work: Awaitable[None]) -> None:
        self.checked = asyncio.Event()
        self._task = asyncio.ensure_future(work)
        # However the work ends, nobody waits for it for ever.
        self._task.add_done_callback(lambda _: self.checked.set())

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


def _checked(endpoint: str, field: str) -> str:
    try:
        host, port = split_endpoint(endpoint)
    except InvalidArgument as error:
        raise InvalidArgument(field, error.problem) from None
    if port == 0:
        raise InvalidArgument(field, f"{endpoint!r} has port 0; a service listens on 1 to 65535")
    return join_endpoint(host, port)
