"""One request, run while its answer is sent."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from orchestrator.api.http.answers import Body, OpenAIAnswer
from orchestrator.api.http.errors import error_body, in_words_of
from orchestrator.api.http.metrics import Timing, metrics, usage
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.api.http.sse import EventWriter, ReaderLost, unless_reader_leaves
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.request import Delta, GenerationRequest
from specgate.errors import InvalidArgument, reason_of

_log = logging.getLogger(__name__)


class GenerationResponse(Response):
    """Asks the request queue for ``request`` when it is sent; gives everything back when it ends or the client leaves.

    What fails before the first delta is raised, so that it can still become a status; what fails later ends a stream
    with an error event, whose ``last_token_index`` counts the answer's tokens from 0 and is -1 before the first.
    """

    def __init__(
        self, request_queue: RequestQueue, params: GenerateRequest, request: GenerationRequest, answer: OpenAIAnswer
    ) -> None:
        super().__init__()
        self._request_queue = request_queue
        self._request = request
        self._answer = answer
        self._params = params
        self._timing = Timing()
        self._told: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI.

        Raises:
            SpecgateError: see ``RequestQueue.admitted`` and ``RunningRequest.deltas``.
        """
        work = self._send_stream(send) if self._params.stream else self._send_whole(scope, receive, send)
        try:
            await unless_reader_leaves(work, receive)
        except InvalidArgument as error:
            raise in_words_of(error, self._params.names) from None

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas = [delta async for delta in self._deltas()]
        await JSONResponse(self._answer.whole(deltas, **self._told))(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        async with EventWriter(send, self._request_queue.read_pace()) as writer:
            try:
                async with aclosing(self._chunks()) as chunks:
                    num_sent = 0
                    async for chunk in chunks:
                        await writer.write(chunk, self._answer.num_sent - num_sent)
                        num_sent = self._answer.num_sent
                await writer.done()
            except ReaderLost as error:
                _log.info("a stream was given up: %s", error)
            except Exception as error:
                if not writer.started:
                    raise
                await self._send_error(writer, error)

    async def _send_error(self, writer: EventWriter, error: Exception) -> None:
        body = error_body(error)
        body["error"]["last_token_index"] = self._answer.num_sent - 1
        try:
            await writer.write(body)
            await writer.end()
        except ReaderLost as lost:
            _log.info("nobody was there to hear of %s: %s", reason_of(error), lost)

    async def _chunks(self) -> AsyncGenerator[Body, None]:
        opened = False
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                if not opened:
                    opened = True
                    for chunk in self._answer.opening():
                        yield chunk
                for chunk in self._answer.chunks(delta):
                    yield chunk
        for chunk in self._answer.closing(**self._told):
            yield chunk

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        async with self._request_queue.admitted(self._request) as running:
            self._timing.let_in()
            async with aclosing(running.deltas()) as deltas:
                async for delta in deltas:
                    self._timing.delta()
                    yield delta
        self._told = {
            "usage": usage(running.stats.prompt_tokens, running.stats.completion_tokens),
            "metrics": metrics(self._request, running.stats, self._timing),
        }
