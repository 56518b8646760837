"""A drafter without a model, ready to serve: it needs no torch and no device, and takes texts of any tokenizer."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from specgate.errors import KVCacheFull
from specgate.service.admission import ANY_TOKEN_ID, Admission
from specgate.service.leases import LeaseBook
from specgate.service.silence import SilenceLimits
from specgate.types import PROTO_VERSION, DraftMethod, ForwardCost, ModelInfo, SessionSpec

T = TypeVar("T")
DEFAULT_TOKENS = 1 << 20
"""Of all sessions: about half a gigabyte, at some 500 bytes a token."""
DRAFT_US = 1
"""Of a token, rounded up."""


class TextPool:
    """Counts the tokens that all sessions hold. All calls come from one event loop.

    Args:
        num_tokens: at the most.
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
        """Take tokens, if so many are left."""
        if num_tokens > self.free_tokens:
            return False
        self.free_tokens -= num_tokens
        return True

    def give(self, num_tokens: int) -> None:
        """Give tokens back."""
        self.free_tokens += num_tokens


class InlineEngine:
    """What ``Engine`` is to a model: runs tasks that need no forward, at once and on the caller's thread."""

    heartbeat_age_s = 0.0

    async def run(self, task: Generator[Any, Any, T]) -> T:
        """Run a task to its end and return its result."""
        try:
            next(task)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a source without a model asked for a forward")

    def submit(self, task: Generator[Any, Any, Any]) -> "Future[Any]":
        """Nobody queues work here."""
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing runs."""


class TextSession(Protocol):
    """What holds tokens of a ``TextPool``."""

    def free(self) -> None: ...


S = TypeVar("S", bound=TextSession)


class ServedText:
    """The service of the method ``suffix``, as ``ServedModel`` is that of a model.

    Args:
        num_tokens: of all sessions' texts at the most; None is ``DEFAULT_TOKENS``.
        leases: whose tokens a session needs; None lets anybody in.
        silence: how long a client may say nothing.
    """

    draft_method = DraftMethod.SUFFIX
    run_ahead_rows = 0

    def __init__(
        self,
        max_sessions: int,
        num_tokens: int | None = None,
        leases: LeaseBook | None = None,
        silence: SilenceLimits = SilenceLimits(),
    ) -> None:
        self.silence = silence
        self.engine = InlineEngine()
        self.pool = TextPool(num_tokens or DEFAULT_TOKENS)
        self.admission = Admission("drafter", max_sessions, 0, {}, leases)
        self._boot_id = uuid.uuid4().hex
        self._loaded_at_s = time.monotonic()

    @property
    def context_length(self) -> int:
        """Tokens of a session at the most."""
        return self.pool.num_tokens

    def info(self) -> ModelInfo:
        """Return what it says of itself: of a model as little as there is."""
        return ModelInfo(
            model=str(self.draft_method),
            role="drafter",
            architecture="SuffixAutomaton",
            dtype="",
            device="cpu",
            context_length=self.context_length,
            vocab_size=ANY_TOKEN_ID,
            num_parameters=0,
            tokenizer_fingerprint={},
            eos_token_ids=(),
            max_sessions=self.admission.max_sessions,
            kv_tokens=self.pool.num_tokens,
            proto_version=PROTO_VERSION,
            boot_id=self._boot_id,
            active_sessions=self.admission.num_sessions,
            free_kv_tokens=self.pool.free_tokens,
            forward_costs=(ForwardCost(1, DRAFT_US),),
            draft_method=self.draft_method,
            uptime_s=int(time.monotonic() - self._loaded_at_s),
        )

    @asynccontextmanager
    async def open(self, spec: SessionSpec, make: Callable[[SessionSpec, TextPool], S]) -> AsyncIterator[S]:
        """Open a session; its tokens are free again when the block is left.

        Raises:
            LeaseRefused: sessions need a lease here, and the token is none.
            InvalidArgument: a token id is outside the target's vocabulary.
            TooManySessions, KVCacheFull: full for now.
        """
        with self.admission.admitted(spec):
            with self.admission.counted():
                session = make(spec, self.pool)
            try:
                yield session
            finally:
                session.free()

    def known_vocab_size(self, spec: SessionSpec) -> int:
        """See ``Admission``."""
        return self.admission.known_vocab_size(spec)
