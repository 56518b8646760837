"""A verifier's session, whatever it is reached by: its rounds on the engine, one at a time."""

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
    """The rounds of one session, after its prefill.

    Args:
        post: receives the prompt's log-probabilities if the session asked for them, each verdict in order, and what a
            round failed with. Called on the event loop.
        working: the context that the engine's work runs in.
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
        self._running = self._start(session.prefill(self._post_from_engine))

    async def begin(self, request: VerifyRequest) -> None:
        """Start a round. A round that still runs is waited for; its solo run ends at the next token.

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
        """Cancel the round that runs, and wait for its end."""
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

    def _emit(self, verdict: Verdict) -> None:
        # Called on the engine's thread before its next forward: the last forward is this verdict's.
        if verdict.num_emitted:
            engine = self._model.engine
            verdict = replace(
                verdict,
                batch_sessions=engine.runner.last_num_sequences,
                batch_rows=engine.runner.last_num_rows,
                forward_us=engine.forward_age_us,
            )
        self._post_from_engine(verdict)

    def _post_from_engine(self, item: Verdict | PromptLogprobs) -> None:
        self._loop.call_soon_threadsafe(self._post, item)

    def _check(self, request: VerifyRequest) -> None:
        vocab_size = self._model.vocab_size
        check_token_ids("proposal.draft_token_ids", request.proposal.draft_token_ids, vocab_size)
        for distribution in request.proposal.draft_probs:
            check_token_ids("proposal.draft_probs.token_ids", distribution.token_ids, vocab_size)
