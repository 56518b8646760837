"""A loaded model in service."""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from specgate.errors import reason_of
from specgate.runtime.engine.engine import Engine
from specgate.runtime.loading import LoadedModel
from specgate.service.admission import Admission
from specgate.service.grammars import GrammarService
from specgate.service.leases import LeaseBook
from specgate.service.served import S, Served, Session
from specgate.service.silence import SilenceLimits
from specgate.types import Capability, DraftMethod, ForwardCost, ModelInfo, SessionSpec

ENGINE_LOOK_S = 1.0
"""How often a session that waits for the engine's thread checks that the thread is alive."""

_log = logging.getLogger(__name__)


class ServedModel(Served):
    """One model in service.

    ``open`` calls what makes a session with the specification, the pool, the model's vocabulary size and context
    length, and with ``grammar`` if the specification has one.

    Args:
        leases: whose tokens a session needs; None lets anybody in.
        run_ahead_rows, forward_costs, draft_method, silence: see ``Served``.
    """

    engine: Engine

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
        super().__init__(
            engine,
            Admission(role, max_sessions, loaded.num_token_ids, loaded.tokenizer_fingerprint, leases),
            silence,
            run_ahead_rows=run_ahead_rows,
            forward_costs=forward_costs,
            draft_method=draft_method,
        )
        self.loaded, self._session_length = loaded, loaded.session_length
        self.grammars = GrammarService(loaded.tokenizer_name, loaded.num_token_ids, loaded.tokenizer_of_file)

    @property
    def vocab_size(self) -> int:
        return self.loaded.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens of one session: the model's context, or all pages if those hold less."""
        return min(self._session_length, self._kv_tokens)

    @property
    def _kv_tokens(self) -> int:
        pool = self.engine.runner.pool
        return pool.num_pages * pool.page_size

    def info(self) -> ModelInfo:
        """See ``Served``."""
        loaded = self.loaded
        service = self._service_info()
        if loaded.tokenizers:
            # A draft by strings is made for each round anew.
            service["capabilities"] -= {Capability.RUNNING_DRAFTS}
        return ModelInfo(
            # Clients need not know the folder of its files.
            model=Path(loaded.name).name if Path(loaded.name).is_absolute() else loaded.name,
            architecture=loaded.architecture,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            vocab_size=loaded.num_token_ids,
            num_parameters=loaded.num_parameters,
            tokenizer_fingerprint=loaded.tokenizer_fingerprint,
            eos_token_ids=() if loaded.tokenizers else loaded.eos_token_ids,
            kv_tokens=self._kv_tokens,
            free_kv_tokens=self.engine.runner.pool.free_tokens,
            batch_invariant=self.engine.runner.kernel.batch_invariant,
            **service,
        )

    async def _make(self, spec: SessionSpec, make: Callable[..., S]) -> S:
        if spec.grammar is not None:
            is_needed = self.admission.role == "verifier"
            make = partial(make, grammar=await self.grammars.state(spec, is_needed=is_needed))
        return make(spec, self.engine.runner.pool, self.vocab_size, self.context_length)

    async def _free(self, session: Session) -> None:
        """Free a session's pages on the engine's thread, after the forward that may write to them.

        The session's place is given up only then, so that the next session finds the pages free.
        """
        freed, cancelled = asyncio.wrap_future(self.engine.post(session.free)), False
        # A thread that has ended frees nothing.
        while not freed.done() and math.isfinite(self.engine.heartbeat_age_s):
            try:
                await asyncio.wait((freed,), timeout=ENGINE_LOOK_S)
            except asyncio.CancelledError:
                cancelled = True
        if freed.done() and (error := freed.exception()) is not None:
            _log.warning("a session's pages were not freed: %s", reason_of(error))
        if cancelled:
            raise asyncio.CancelledError
