"""A verifier's session whatever it is reached by: its rounds on the engine, one at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from specgate.errors import ServiceUnavailable
from specgate.rpc.validate import check_token_ids
from specgate.service.model import ServedModel
from specgate.types import TokenLogprobs, Verdict, VerifyRequest
from verifier_svc.verifier import Verifying, VerifySession

PromptLogprobs = tuple[TokenLogprobs, ...]
Post = Callable[[Verdict | PromptLogprobs | Exception], None]


class VerifyRounds:
    """The rounds of one session, its prefill before them.

    Args:
        post: given what the prompt's tokens are told, if the session asked for that, each verdict in order, and what a
            round failed with; on the event loop.
        working: what the engine's work stands within.
    """

    def __init__(
        self,
        model: ServedModel,
        session: VerifySession,
        post: Post,
        working: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._model = model
        self._session = session
        self._post = post
        self._working = working
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._within = ExitStack()
        self._running = self._start(session.prefill(self._tell))

    async def begin(self, request: VerifyRequest) -> None:
        """Start a round. One that runs is waited for, its solo run ends at the next token.

        Raises:
            InvalidArgument: a token id is unknown.
            ServiceUnavailable: the rounds were cancelled meanwhile.
        """
        self._check(request)
        self._session.interrupt()
        await self.ended()
        if self._running.cancelled():
            raise ServiceUnavailable("the session was closed")
        self._session.resume()
        self._running = self._start(self._session.verify(request, self._emit))

    async def ended(self) -> None:
        """Return when no round runs."""
        await self._idle.wait()

    async def cancel(self) -> None:
        """End what runs, for good."""
        self._running.cancel()
        await self.ended()

    def _start(self, work: Verifying) -> Future[None]:
        self._idle.clear()
        self._within.enter_context(self._working())
        running = self._model.engine.submit(work)
        running.add_done_callback(lambda running: self._loop.call_soon_threadsafe(self._end, running))
        return running

    def _end(self, running: Future[None]) -> None:
        try:
            self._within.close()
            if not running.cancelled() and isinstance(error := running.exception(), Exception):
                self._post(error)
        finally:
            self._idle.set()

    def _tell(self, logprobs: PromptLogprobs) -> None:
        self._loop.call_soon_threadsafe(self._post, logprobs)

    def _emit(self, verdict: Verdict) -> None:
        # On the engine's thread, before its next forward: the last one is still this verdict's.
        if verdict.num_emitted:
            engine = self._model.engine
            verdict = replace(
                verdict,
                batch_sessions=engine.runner.last_num_sequences,
                batch_rows=engine.runner.last_num_rows,
                forward_us=engine.forward_age_us,
            )
        self._loop.call_soon_threadsafe(self._post, verdict)

    def _check(self, request: VerifyRequest) -> None:
        vocab_size = self._model.vocab_size
        check_token_ids("proposal.draft_token_ids", request.proposal.draft_token_ids, vocab_size)
        for distribution in request.proposal.draft_probs:
            check_token_ids("proposal.draft_probs.token_ids", distribution.token_ids, vocab_size)
