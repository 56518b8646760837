"""Fakes of a pool and of what dials into it, for faults that a whole fleet has."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.decode.ports import Lease
from specgate.errors import ServiceUnavailable
from specgate.types import SessionSpec
from tests.support.fakes import FakeDrafter, FakeVerifier


@dataclass(slots=True)
class FakePool:
    """A pool of one endpoint that is there while ``up``; a lease waits for ``free``, if that is given."""

    up: bool = True
    free: asyncio.Event | None = None
    num_leased: int = 0
    num_failed: int = 0
    closed: bool = False

    async def lease(self) -> Lease:
        """See ``ports.Pool``."""
        if self.free is not None:
            await self.free.wait()
        if not self.up:
            raise ServiceUnavailable("the fake pool is down")
        self.num_leased += 1
        return Lease("fake:1")

    def release(self, lease: Lease, *, failed: bool = False) -> None:
        """See ``ports.Pool``."""
        self.num_leased -= 1
        self.num_failed += failed

    async def close(self) -> None:
        """See ``ports.Pool``."""
        self.closed = True


MakeDrafter = Callable[[SessionSpec], FakeDrafter]
MakeVerifier = Callable[[SessionSpec], FakeVerifier]


@dataclass(slots=True)
class FakeDialer:
    """Opens what the lists say, one entry a session and the last one for all that follow; an exception is raised."""

    drafters: Sequence[MakeDrafter | Exception] = (FakeDrafter,)
    verifiers: Sequence[MakeVerifier | Exception] = (FakeVerifier,)
    context_length: int = 1 << 20
    opened_drafters: list[FakeDrafter] = field(default_factory=list)
    opened_verifiers: list[FakeVerifier] = field(default_factory=list)
    num_drafter_dials: int = 0
    num_verifier_dials: int = 0

    def context_length_at(self, lease: Lease) -> int:
        """See ``ports.DrafterDialer``."""
        return self.context_length

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> FakeDrafter:
        """See ``ports.DrafterDialer``."""
        make = self.drafters[min(self.num_drafter_dials, len(self.drafters) - 1)]
        self.num_drafter_dials += 1
        if isinstance(make, Exception):
            raise make
        self.opened_drafters.append(make(spec))
        return self.opened_drafters[-1]

    async def open_verifier(self, lease: Lease, spec: SessionSpec) -> FakeVerifier:
        """See ``ports.VerifierDialer``."""
        make = self.verifiers[min(self.num_verifier_dials, len(self.verifiers) - 1)]
        self.num_verifier_dials += 1
        if isinstance(make, Exception):
            raise make
        self.opened_verifiers.append(make(spec))
        return self.opened_verifiers[-1]
