"""Fakes of a pool and of what dials into it, as ``decode.ports`` has them, for faults that a whole fleet has."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.decode.ports import Lease, SessionCost
from orchestrator.services.discovery import fitting
from specgate.errors import ServiceUnavailable
from specgate.types import SessionSpec
from tests.support.fakes import FakeDrafter, FakeVerifier

T = TypeVar("T")


@dataclass(slots=True)
class FakePool:
    """A pool of one endpoint that is there while ``up``; a lease waits for ``free``, if that is given."""

    up: bool = True
    free: asyncio.Event | None = None
    num_leased: int = 0
    num_failed: int = 0
    closed: bool = False

    async def lease(self, cost: SessionCost | None = None) -> Lease:
        if self.free is not None:
            await self.free.wait()
        if not self.up:
            raise ServiceUnavailable("the fake pool is down")
        self.num_leased += 1
        return Lease("fake:1")

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        self.num_leased -= 1
        self.num_failed += failed

    async def close(self) -> None:
        self.closed = True


MakeDrafter = Callable[[SessionSpec], FakeDrafter]
MakeVerifier = Callable[[SessionSpec], FakeVerifier]


@dataclass(slots=True)
class FakeDialer:
    """Opens what the lists say, one entry a session and the last one for all that follow; an exception is raised."""

    drafters: Sequence[MakeDrafter | Exception] = (FakeDrafter,)
    verifiers: Sequence[MakeVerifier | Exception] = (FakeVerifier,)
    context_length: int = 1 << 20
    """What a drafter holds."""
    opened_drafters: list[FakeDrafter] = field(default_factory=list)
    opened_verifiers: list[FakeVerifier] = field(default_factory=list)
    num_drafter_dials: int = 0
    num_verifier_dials: int = 0

    def cost_us(self, endpoint: str, num_sessions: int) -> float:
        return num_sessions

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> tuple[FakeDrafter, int]:
        self.num_drafter_dials += 1
        spec = fitting(spec, self.context_length)
        opened = _opened(self.drafters, self.num_drafter_dials, spec, self.opened_drafters)
        return opened, spec.first_position + self.context_length

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> FakeVerifier:
        self.num_verifier_dials += 1
        return _opened(self.verifiers, self.num_verifier_dials, spec, self.opened_verifiers)


def _opened(
    makers: Sequence[Callable[[SessionSpec], T] | Exception], num_dials: int, spec: SessionSpec, opened: list[T]
) -> T:
    make = makers[min(num_dials, len(makers)) - 1]
    if isinstance(make, Exception):
        raise make
    opened.append(make(spec))
    return opened[-1]
