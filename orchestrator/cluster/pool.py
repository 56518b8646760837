"""A pool whose leases are Ray Serve requests: Serve balances them, queues them, and knows the live replicas."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from orchestrator.cluster.answers import first_line
from orchestrator.cluster.running import ANSWER_S, FRESH_S, Replicas
from orchestrator.decode.ports import Lease, SessionCost
from specgate.errors import ServiceUnavailable, SpecgateError, TooManySessions

DRAFTER_WAIT_S = 0.5
"""Short, because a request can do without a drafter."""
REST_S = 1.0
LOOK_S = FRESH_S
"""How often a waiting request checks whether a replica runs or is being started."""
END_GRACE_S = 0.5
"""After a lease is given back, its session's stream closes, which ends the lease within this time."""
BROKEN = (RayError, RayServeException, StopAsyncIteration)
"""How a call to a replica ends that is dead, stopped, or was never there."""

_log = logging.getLogger(__name__)


class ServePool:
    """See ``ports.Pool``. A lease is one streaming call to a replica, open as long as its session is.

    Args:
        role: the name of the replicas in messages.
        handle: of a deployment with ``cluster.replica.ServiceReplica``'s ``lease``.
        wait_s: how long a lease may take.
        rest_s: after a lease failed, how long further ones fail at once.
    """

    def __init__(self, role: str, handle: DeploymentHandle[Any], wait_s: float, rest_s: float = 0.0) -> None:
        self._role = role
        self._handle = handle.options(stream=True)
        self._replicas = Replicas(role, handle)
        self._wait_s = wait_s
        self._rest_s = rest_s
        self._rested_at_s = 0.0
        self._held: dict[Lease, _Call] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        """Return a lease on the replica that Serve chose. Waits for a full replica, and for one that Serve starts.

        Raises:
            TooManySessions: all replicas are full, and too many requests wait, or this one waited too long.
            ServiceUnavailable: no replica is there, and none is being started; Ray's own reason is logged.
        """
        if time.monotonic() < self._rested_at_s:
            raise ServiceUnavailable(f"no {self._role} was free a moment ago")
        try:
            async with asyncio.timeout(self._wait_s):
                while (lease := await self._asked()) is None:
                    await self._check_expected()
                    await asyncio.sleep(LOOK_S)
                return lease
        except TimeoutError:
            self._rested_at_s = time.monotonic() + self._rest_s
            raise await self._nobody_free() from None
        except ServiceUnavailable:
            self._rested_at_s = time.monotonic() + self._rest_s
            raise

    async def _asked(self) -> Lease | None:
        """Ask Serve for a lease once; return None if the chosen replica is dead, stopped, or was never there."""
        response: Any = self._handle.lease.remote()
        try:
            endpoint, token = await self._first_of(response)
        except BackPressureError:
            raise TooManySessions(f"all {self._role}s are full, and as many requests wait for one as may") from None
        except BROKEN as error:
            _log.warning("no %s gave a lease: %s", self._role, first_line(error))
            return None
        except BaseException:
            response.cancel()
            raise
        lease = Lease(endpoint, token)
        self._held[lease] = _Call(response)
        return lease

    async def _first_of(self, response: Any) -> tuple[str, str]:
        answer = asyncio.ensure_future(anext(response))
        try:
            while not (await asyncio.wait({answer}, timeout=LOOK_S))[0]:
                await self._check_expected()
        except BaseException:
            answer.cancel()
            await asyncio.wait({answer})
            raise
        first: tuple[str, str] = answer.result()
        return first

    async def _check_expected(self) -> None:
        if not await self._replicas.expected(self._wait_s):
            raise ServiceUnavailable(f"no {self._role} is there, and none is on its way")

    async def _nobody_free(self) -> SpecgateError:
        problem = f"no {self._role} was free within {self._wait_s:g} s"
        # A short wait for a lease must not become a long wait for the reason.
        busy = await self._replicas.any_running(min(ANSWER_S, self._wait_s))
        return TooManySessions(problem) if busy else ServiceUnavailable(problem)

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give a lease back. Serve finds out by itself which replicas have failed. Safe after ``close``."""
        call = self._held.pop(lease, None)
        if call is None:
            return
        ending = asyncio.create_task(call.end(END_GRACE_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Give back all leases. Safe to call twice."""
        held, self._held = self._held, {}
        await asyncio.gather(*self._ending, *(call.end(0.0) for call in held.values()))


class _Call:
    """An open call to a replica, after its first answer; there is no second."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._ended = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        with suppress(*BROKEN):
            await anext(self._response)

    async def end(self, grace_s: float) -> None:
        """Wait ``grace_s`` for the replica to end the call, then cancel it."""
        ended, _ = await asyncio.wait({self._ended}, timeout=grace_s)
        if not ended:
            self._response.cancel()
            await asyncio.wait({self._ended})
