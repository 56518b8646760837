"""One leased session on a service of either kind: opened within a time limit, given back once."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from orchestrator.decode.ports import Lease, Pool
from specgate.errors import InvalidArgument, ServiceUnavailable


class Closing(Protocol):
    """A session on a service."""

    async def close(self) -> None: ...


Session = TypeVar("Session", bound=Closing)


@dataclass(frozen=True, slots=True)
class SessionLease(Generic[Session]):
    """A session, and its lease."""

    pool: Pool
    lease: Lease
    session: Session

    @classmethod
    async def open(cls, pool: Pool, lease: Lease, opening: Awaitable[Session], timeout_s: float, service: str) -> Self:
        """Wait for ``opening``; without a session the lease is given back.

        Raises:
            ServiceUnavailable: it was not open within ``timeout_s``.
            SpecgateError: what ``opening`` raised.
        """
        try:
            async with asyncio.timeout(timeout_s):
                session = await opening
        except BaseException as error:
            # Neither our own cancellation nor a refused request is the service's fault.
            pool.release(lease, failed=isinstance(error, Exception) and not isinstance(error, InvalidArgument))
            if isinstance(error, TimeoutError):
                problem = f"the {service} at {lease.endpoint} opened no session within {timeout_s:.3g} s"
                raise ServiceUnavailable(problem) from None
            raise
        return cls(pool, lease, session)

    async def give_back(self, *, failed: bool = False) -> None:
        """Release the lease, and close the session; ``failed``: the pool checks the service before the next lease."""
        self.pool.release(self.lease, failed=failed)
        await self.session.close()
