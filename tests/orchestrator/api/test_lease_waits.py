"""How long leases are waited for, as ``/metrics`` tells it."""

import asyncio

import pytest

from orchestrator.api.metrics.leases import LeaseWaits, TimedPool
from orchestrator.decode.ports import Lease, SessionCost
from specgate.errors import TooManySessions


class SlowPool:
    """Gives one lease, after a while, and no second one."""

    def __init__(self) -> None:
        self.released: list[tuple[Lease, bool]] = []
        self._left = 1

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        await asyncio.sleep(0.02)
        if not self._left:
            raise TooManySessions("full")
        self._left -= 1
        return Lease("127.0.0.1:1")

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        self.released.append((lease, failed))

    async def close(self) -> None:
        """Nothing runs."""


async def test_waits_are_counted_by_service_and_outcome() -> None:
    inner, waits = SlowPool(), LeaseWaits()
    pool = TimedPool("verifier", inner, waits)
    lease = await pool.lease()
    with pytest.raises(TooManySessions):
        await pool.lease()
    # Who gave up waiting says nothing of how long it takes.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.lease(), 0.001)
    pool.release(lease, failed=True)
    assert inner.released == [(lease, True)]
    samples = {(one.name.rpartition("_")[2], *one.labels.values()): one.value for one in next(waits.collect()).samples}
    for outcome in ("given", "refused"):
        assert samples["count", "verifier", outcome] == 1
        assert samples["sum", "verifier", outcome] >= 0.02
        assert samples["bucket", "verifier", outcome, "0.01"] == 0
