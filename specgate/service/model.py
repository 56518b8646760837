"""A loaded model ready to serve: its engine, what it says of itself, who may open sessions on it."""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from specgate.errors import reason_of
from specgate.runtime.engine.engine import Engine
from specgate.runtime.loading import LoadedModel
from specgate.service.admission import Admission
from specgate.service.grammars import GrammarService
from specgate.service.leases import LeaseBook
from specgate.service.silence import SilenceLimits
from specgate.types import PROTO_VERSION, DraftMethod, ForwardCost, ModelInfo, SessionSpec

ENGINE_LOOK_S = 1.0
"""How often those who wait for the engine's thread look whether it is still there."""

_log = logging.getLogger(__name__)


class PagedSession(Protocol):
    """What owns pages on the engine's thread."""

    def free(self) -> None: ...


S = TypeVar("S", bound=PagedSession)
MakeSession = Callable[..., S]
"""Called with the specification, the pool, the model's vocabulary size and context length, and a ``grammar`` where the
specification has one."""


class ServedModel:
    """One model in service: admits sessions, and frees what they hold however they end.

    Args:
        leases: whose tokens a session needs; None lets anybody in.
        run_ahead_rows: of a drafter, how many guesses it drafts side by side; 0 is none.
        forward_costs: what forwards took when it loaded, as it is told to whoever asks.
        draft_method: of a drafter.
        silence: how long a client may say nothing.
    """

    def __init__(
        self,
        role: str,
        loaded: LoadedModel,
        engine: Engine,
        max_sessions: int,
        leases: LeaseBook | None = None,
        run_ahead_rows: int = 0,
        forward_costs: tuple[ForwardCost, ...] = (),
        draft_method: DraftMethod = DraftMethod.MODEL,
        silence: SilenceLimits = SilenceLimits(),
    ) -> None:
        self.role = role
        self.loaded = loaded
        self.engine = engine
        self.run_ahead_rows = run_ahead_rows
        self.draft_method = draft_method
        self.forward_costs = forward_costs
        self.silence = silence
        fingerprint = loaded.tokenizer_fingerprint
        self.admission = Admission(role, max_sessions, loaded.vocab_size, fingerprint, leases)
        self.grammars = GrammarService(loaded.name, loaded.vocab_size)
        self._boot_id = uuid.uuid4().hex
        self._loaded_at_s = time.monotonic()

    @property
    def max_sessions(self) -> int:
        return self.admission.max_sessions

    @property
    def num_sessions(self) -> int:
        return self.admission.num_sessions

    @property
    def vocab_size(self) -> int:
        return self.loaded.vocab_size

    @property
    def context_length(self) -> int:
        """Tokens of a session at the most: the model's context, or all pages where those hold less."""
        pool = self.engine.runner.pool
        return min(self.loaded.context_length, pool.num_pages * pool.page_size)

    def info(self) -> ModelInfo:
        loaded, pool = self.loaded, self.engine.runner.pool
        return ModelInfo(
            # Where its files lie is nobody's business who may ask.
            model=Path(loaded.name).name if Path(loaded.name).is_absolute() else loaded.name,
            role=self.role,
            architecture=loaded.architecture,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            context_length=self.context_length,
            vocab_size=loaded.vocab_size,
            num_parameters=loaded.num_parameters,
            tokenizer_fingerprint=loaded.tokenizer_fingerprint,
            eos_token_ids=loaded.eos_token_ids,
            max_sessions=self.max_sessions,
            kv_tokens=pool.num_pages * pool.page_size,
            proto_version=PROTO_VERSION,
            boot_id=self._boot_id,
            active_sessions=self.num_sessions,
            free_kv_tokens=pool.free_tokens,
            forward_costs=self.forward_costs,
            draft_method=self.draft_method,
            uptime_s=int(time.monotonic() - self._loaded_at_s),
            batch_invariant=self.engine.runner.kernel.batch_invariant,
        )

    @asynccontextmanager
    async def open(self, spec: SessionSpec, make: MakeSession[S]) -> AsyncIterator[S]:
        """Open a session; its pages are free again when the block is left, also by cancellation.

        Raises:
            LeaseRefused: sessions need a lease here, and the token is none.
            InvalidArgument: a token id is outside the vocabulary, the session is longer than the model takes, or its
                grammar cannot be used.
            TokenizerMismatch: the other model's token ids mean something else.
            TooManySessions, KVCacheFull: full for now.
        """
        with self.admission.admitted(spec):
            with self.admission.counted():
                if spec.grammar is not None:
                    make = partial(make, grammar=await self.grammars.state(spec, is_needed=self.role == "verifier"))
                session = make(spec, self.engine.runner.pool, self.vocab_size, self.context_length)
            try:
                yield session
            finally:
                await self._freed(session)

    async def _freed(self, session: PagedSession) -> None:
        """Free a session's pages; return, even to a handler that is cancelled, when that is done.

        The engine may be in a forward that writes to them: they are freed on its thread, after it. Whoever gets the
        session's place next must find them free, so the place is given up only then.
        """
        freed, cancelled = asyncio.wrap_future(self.engine.post(session.free)), False
        # A thread that has ended frees nothing, and there is nothing any more to be freed for.
        while not freed.done() and math.isfinite(self.engine.heartbeat_age_s):
            try:
                await asyncio.wait((freed,), timeout=ENGINE_LOOK_S)
            except asyncio.CancelledError:
                cancelled = True
        if freed.done() and (error := freed.exception()) is not None:
            _log.warning("a session's pages were not freed: %s", reason_of(error))
        if cancelled:
            raise asyncio.CancelledError

    def known_vocab_size(self, spec: SessionSpec) -> int:
        """See ``Admission``."""
        return self.admission.known_vocab_size(spec)
