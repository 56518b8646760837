"""How long requests wait for a lease, measured around the pool that gives it."""

import time
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from orchestrator.api.metrics.rounds import Buckets
from orchestrator.decode.ports import Lease, Pool, SessionCost
from specgate.errors import SpecgateError

SECONDS_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GIVEN, REFUSED = "given", "refused"


class LeaseWaits:
    """Waits of all requests of one gateway, as a collector of Prometheus's."""

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], Buckets] = {}

    def add(self, role: str, outcome: str, seconds: float) -> None:
        """Count a wait."""
        self._waits.setdefault((role, outcome), Buckets(SECONDS_BOUNDS)).add(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric; see ``prometheus_client.registry.Collector``."""
        meaning = "From asking for a session's lease to having it, or being refused, by service."
        family = HistogramMetricFamily("specgate_lease_wait_seconds", meaning, labels=["service", "outcome"])
        for of, waits in self._waits.items():
            counts, total = waits.cumulative()
            family.add_metric(of, buckets=counts, sum_value=total)
        yield family


class TimedPool:
    """A ``ports.Pool`` that counts the waits for another one. A wait that the client gives up is not counted."""

    def __init__(self, role: str, pool: Pool, waits: LeaseWaits) -> None:
        self._role = role
        self._pool = pool
        self._waits = waits

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        start_s = time.perf_counter()
        try:
            lease = await self._pool.lease(cost)
        except SpecgateError:
            self._waits.add(self._role, REFUSED, time.perf_counter() - start_s)
            raise
        self._waits.add(self._role, GIVEN, time.perf_counter() - start_s)
        return lease

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        self._pool.release(lease, failed=failed)

    async def close(self) -> None:
        await self._pool.close()
