"""A leased session is opened within its time and given back once, whatever comes of it."""

import asyncio
from collections.abc import Awaitable

import pytest

from orchestrator.decode.ports import Lease, SessionCost
from orchestrator.services.session_lease import SessionLease
from specgate.errors import InvalidArgument, KVCacheFull, ServiceUnavailable, SpecgateError

LEASE = Lease("here:1")


class Released:
    """A pool that remembers what it was given back."""

    def __init__(self) -> None:
        self.leases: list[tuple[Lease, bool]] = []

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        return LEASE

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        self.leases.append((lease, failed))

    async def close(self) -> None:
        """Nothing runs behind it."""


class Session:
    """A session that can be closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def opening(what: Session | SpecgateError, delay_s: float = 0.0) -> Session:
    await asyncio.sleep(delay_s)
    if isinstance(what, SpecgateError):
        raise what
    return what


async def leased(pool: Released, opening: Awaitable[Session], timeout_s: float = 60.0) -> SessionLease[Session]:
    return await SessionLease[Session].open(pool, LEASE, opening, timeout_s, "verifier")


async def test_an_open_session_is_given_back_with_its_lease() -> None:
    pool, session = Released(), Session()
    lease = await leased(pool, opening(session))
    assert pool.leases == []
    await lease.give_back(failed=True)
    assert (pool.leases, session.closed) == ([(LEASE, True)], True)


@pytest.mark.parametrize(
    ("error", "at_fault"), [(KVCacheFull("full"), True), (InvalidArgument("prompt", "too long"), False)]
)
async def test_only_a_refused_request_is_not_the_services_fault(error: SpecgateError, at_fault: bool) -> None:
    pool = Released()
    with pytest.raises(type(error)):
        await leased(pool, opening(error))
    assert pool.leases == [(LEASE, at_fault)]


async def test_one_that_does_not_open_in_time_is_at_fault_and_one_that_is_cancelled_is_not() -> None:
    pool = Released()
    with pytest.raises(ServiceUnavailable, match=r"the verifier at here:1 opened no session within 0\.01 s"):
        await leased(pool, opening(Session(), delay_s=60), timeout_s=0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leased(pool, opening(Session(), delay_s=60)), 0.01)
    assert pool.leases == [(LEASE, True), (LEASE, False)]
