"""A drafter without a model: it needs no torch and no device, and takes texts of any tokenizer."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from specgate.errors import KVCacheFull
from specgate.service.admission import ANY_TOKEN_ID, Admission
from specgate.service.leases import LeaseBook
from specgate.service.served import S, Served, Session
from specgate.service.silence import SilenceLimits
from specgate.types import DraftMethod, ForwardCost, ModelInfo, SessionSpec

if TYPE_CHECKING:
    from specgate.runtime.engine.engine import Task

T = TypeVar("T")
DEFAULT_TOKENS = 1 << 20
"""Of all sessions: about half a gigabyte, at some 500 bytes a token."""
DRAFT_US = 1
"""Of a token, rounded up."""


class TextPool:
    """Counts the tokens that all sessions hold. All calls come from one event loop.

    Args:
        num_tokens: the most that they may hold.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.free_tokens = num_tokens

    def take(self, num_tokens: int) -> int:
        """Take tokens for a session, and return how many.

        Raises:
            KVCacheFull: fewer are left.
        """
        if not self.try_take(num_tokens):
            raise KVCacheFull(f"{num_tokens} tokens are asked for, {self.free_tokens} of {self.num_tokens} are free")
        return num_tokens

    def try_take(self, num_tokens: int) -> bool:
        """Take tokens if so many are left; return whether they are taken."""
        if num_tokens > self.free_tokens:
            return False
        self.free_tokens -= num_tokens
        return True

    def give(self, num_tokens: int) -> None:
        """Give tokens back."""
        self.free_tokens += num_tokens


class InlineEngine:
    """See ``SessionEngine``. It runs tasks that need no forward, at once and on the caller's thread."""

    heartbeat_age_s = 0.0

    async def run(self, task: "Task[T]") -> T:
        """See ``SessionEngine``."""
        try:
            next(task)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a source without a model asked for a forward")

    def submit(self, task: "Task[T]") -> "Future[T]":
        """See ``SessionEngine``. A source without a model queues nothing."""
        raise NotImplementedError

    def stop(self) -> None:
        """See ``SessionEngine``. Nothing runs here."""


class ServedText(Served):
    """The service of the method ``suffix``. ``open`` calls what makes a session with the specification and the pool.

    Args:
        num_tokens: the most that all sessions' texts may have; None is ``DEFAULT_TOKENS``.
        leases: whose tokens a session needs; None lets anybody in.
        silence: how long a client may be silent.
    """

    def __init__(
        self,
        max_sessions: int,
        num_tokens: int | None = None,
        leases: LeaseBook | None = None,
        silence: SilenceLimits = SilenceLimits(),
    ) -> None:
        super().__init__(
            InlineEngine(),
            Admission("drafter", max_sessions, 0, {}, leases),
            silence,
            forward_costs=(ForwardCost(1, DRAFT_US),),
            draft_method=DraftMethod.SUFFIX,
        )
        self.pool = TextPool(num_tokens or DEFAULT_TOKENS)

    @property
    def context_length(self) -> int:
        """The most tokens of one session."""
        return self.pool.num_tokens

    def info(self) -> ModelInfo:
        """See ``Served``."""
        return ModelInfo(
            model=str(self.draft_method),
            architecture="SuffixAutomaton",
            dtype="",
            device="cpu",
            vocab_size=ANY_TOKEN_ID,
            num_parameters=0,
            tokenizer_fingerprint={},
            eos_token_ids=(),
            kv_tokens=self.pool.num_tokens,
            free_kv_tokens=self.pool.free_tokens,
            **self._service_info(),
        )

    async def _make(self, spec: SessionSpec, make: Callable[..., S]) -> S:
        return make(spec, self.pool)

    async def _free(self, session: Session) -> None:
        session.free()
