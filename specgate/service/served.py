"""What is served, with a model or without: it admits sessions, and frees what they hold however they end."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from specgate.service.admission import Admission
from specgate.service.silence import SilenceLimits
from specgate.types import CAPABILITIES, PROTO_VERSION, DraftMethod, ForwardCost, ModelInfo, SessionSpec

if TYPE_CHECKING:
    from specgate.runtime.engine.jobs import Task

T = TypeVar("T")
OnLoading = Callable[[str, int, int], None]
"""Called from another thread with a stage's name, how much of it is done and how much there is."""
OnNotice = Callable[[str], None]
"""Called from another thread with what the person who started the service should know."""


class SessionEngine(Protocol):
    """What runs a session's work: ``Engine``, or ``InlineEngine`` if there is no model."""

    @property
    def heartbeat_age_s(self) -> float: ...

    async def run(self, task: "Task[T]") -> T:
        """Run a task to its end and return its result."""
        ...

    def submit(self, task: "Task[T]") -> "Future[T]":
        """Queue a task. Called from any thread."""
        ...

    def stop(self) -> None: ...


class Session(Protocol):
    """What holds pages, or tokens of a text."""

    def free(self) -> None: ...


S = TypeVar("S", bound=Session)


class Served(ABC):
    """One model in service, or a text source.

    Args:
        run_ahead_rows: of a drafter, how many guesses it drafts side by side; 0 is none.
        forward_costs: what forwards took when it loaded.
        draft_method: of a drafter.
        silence: how long a client may be silent.
    """

    def __init__(
        self,
        engine: SessionEngine,
        admission: Admission,
        silence: SilenceLimits,
        *,
        run_ahead_rows: int = 0,
        forward_costs: tuple[ForwardCost, ...] = (),
        draft_method: DraftMethod = DraftMethod.MODEL,
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.silence = silence
        self.run_ahead_rows = run_ahead_rows
        self.draft_method = draft_method
        self._forward_costs = forward_costs
        self._boot_id = uuid.uuid4().hex
        self._loaded_at_s = time.monotonic()

    @property
    @abstractmethod
    def context_length(self) -> int:
        """The most tokens of one session."""

    @abstractmethod
    def info(self) -> ModelInfo:
        """Return what the service says of itself."""

    def _service_info(self) -> dict[str, Any]:
        """Return the fields of ``ModelInfo`` that say nothing of a model."""
        return {
            "role": self.admission.role,
            "context_length": self.context_length,
            "max_sessions": self.admission.max_sessions,
            "active_sessions": self.admission.num_sessions,
            "proto_version": PROTO_VERSION,
            "boot_id": self._boot_id,
            "uptime_s": int(time.monotonic() - self._loaded_at_s),
            "forward_costs": self._forward_costs,
            "draft_method": self.draft_method,
            "capabilities": CAPABILITIES[self.admission.role],
        }

    @asynccontextmanager
    async def open(self, spec: SessionSpec, make: Callable[..., S]) -> AsyncIterator[S]:
        """Open a session. What it holds is free again when the block is left, also by cancellation.

        Raises:
            LeaseRefused: sessions need a lease here, and the token is none.
            InvalidArgument: a token id is outside the vocabulary, the session is longer than the model takes, or its
                grammar cannot be used.
            TokenizerMismatch: the other model's token ids mean something else.
            TooManySessions, KVCacheFull: full for now.
        """
        with self.admission.admitted(spec):
            with self.admission.counted():
                session = await self._make(spec, make)
            try:
                yield session
            finally:
                await self._free(session)

    @abstractmethod
    async def _make(self, spec: SessionSpec, make: Callable[..., S]) -> S:
        """Return the session that ``make`` makes."""

    @abstractmethod
    async def _free(self, session: Session) -> None:
        """Free what a session holds; return when it is free, even in a task that is cancelled."""
