"""One request, run while its answer is sent."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, Protocol

from fastapi import Response
from starlette.types import Receive, Scope, Send

from orchestrator.api.http.choice import Body
from orchestrator.api.http.errors import error_body, with_client_field
from orchestrator.api.http.metrics import Timing, metrics, total
from orchestrator.api.http.rendering import to_json, to_json_in_pieces
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.api.http.sse import EventWriter, ReaderLost, event_of, unless_reader_leaves
from orchestrator.api.request_queue import MAX_SIZE_AT_ONCE, RequestQueue
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from specgate.errors import InvalidArgument, SpecgateError, reason_of

_log = logging.getLogger(__name__)


class Answer(Protocol):
    """What an endpoint makes of the deltas."""

    ends_with_done: ClassVar[bool]
    """Whether ``[DONE]`` is sent behind a complete stream."""

    @property
    def num_sent(self) -> int:
        """Tokens in the answer so far, of all choices."""
        ...

    def whole(self, deltas: Sequence[Sequence[Delta]], metrics: Mapping[str, Any]) -> Body:
        """Return the answer in one piece; ``deltas`` are each choice's."""
        ...

    def chunks(self, index: int, delta: Delta) -> Iterator[Body]:
        """Yield the events that a delta of choice ``index`` completes."""
        ...

    def closing(self, metrics: Mapping[str, Any]) -> Iterator[Body]:
        """Yield what comes after the last delta's events."""
        ...

    def failure(self, error: Body) -> Body:
        """Return the event of an ``error`` in mid-stream."""
        ...


class GenerationResponse(Response):
    """Asks the request queue for ``requests``, a choice each, when it is sent.

    It gives everything back when it ends or the client leaves.

    What fails before the first delta is raised, so that it can still become a status; what fails later ends a stream
    with an error event, whose ``last_token_index`` counts the answer's tokens from 0 and is -1 before the first.
    """

    def __init__(
        self,
        request_queue: RequestQueue,
        params: GenerateRequest,
        requests: Sequence[GenerationRequest],
        answer: Answer,
    ) -> None:
        super().__init__()
        self._request_queue = request_queue
        self._requests = requests
        self._answer = answer
        self._params = params
        self._timing = Timing()
        self._stats: dict[int, GenerationStats] = {}
        """Of each choice that has ended, by its index."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI.

        Raises:
            SpecgateError: see ``RequestQueue.deltas``.
        """
        work = self._send_stream(send) if self._params.stream else self._send_whole(scope, receive, send)
        try:
            await unless_reader_leaves(work, receive)
        except InvalidArgument as error:
            raise with_client_field(error, self._params.names) from None

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas: list[list[Delta]] = [[] for _ in self._requests]
        async for index, delta in self._request_queue.deltas(self._requests, self._timing.on_turn):
            self._count(index, delta)
            deltas[index].append(delta if self._params.return_rounds else delta.without_records())
        size = sum(delta.size for own in deltas for delta in own)
        body = await self._request_queue.beside(partial(self._whole, deltas, size), size)
        await Response(body, media_type="application/json")(scope, receive, send)

    def _whole(self, deltas: Sequence[list[Delta]], size: int) -> bytes:
        body = self._answer.whole(deltas, self._metrics())
        # To free them takes a while too.
        for own in deltas:
            own.clear()
        return _json_of(size)(body).encode()

    async def _send_stream(self, send: Send) -> None:
        async with EventWriter(send, self._request_queue.read_pace()) as writer:
            try:
                await self._write_deltas(writer)
                for chunk in self._answer.closing(self._metrics()):
                    await writer.write(event_of(chunk, to_json))
                await (writer.done() if self._answer.ends_with_done else writer.end())
            except ReaderLost as error:
                _log.info("a stream was given up: %s", error)
            except Exception as error:
                if not writer.started:
                    raise
                await self._send_error(writer, error)

    async def _send_error(self, writer: EventWriter, error: Exception) -> None:
        # The status went out long ago, and says 200.
        kind = error.reason if isinstance(error, SpecgateError) else type(error).__name__
        _log.info("a stream ended with an error: %s", kind)
        body = error_body(error)
        body["error"]["last_token_index"] = self._answer.num_sent - 1
        try:
            await writer.write(event_of(self._answer.failure(body), to_json))
            await writer.end()
        except ReaderLost as lost:
            _log.info("nobody was there to hear of %s: %s", reason_of(error), lost)

    async def _write_deltas(self, writer: EventWriter) -> None:
        num_sent = 0
        async with aclosing(self._request_queue.deltas(self._requests, self._timing.on_turn)) as deltas:
            async for index, delta in deltas:
                self._count(index, delta)
                size, chunks = delta.size, partial(self._answer.chunks, index, delta)
                for event in await self._request_queue.beside(partial(_events_of, chunks, size), size):
                    await writer.write(event, self._answer.num_sent - num_sent)
                    num_sent = self._answer.num_sent

    def _count(self, index: int, delta: Delta) -> None:
        self._timing.on_delta(delta)
        if delta.stats is not None:
            self._stats[index] = delta.stats

    def _metrics(self) -> dict[str, Any]:
        return metrics(self._requests[0], total([self._stats[index] for index in sorted(self._stats)]), self._timing)


def _json_of(size: int) -> Callable[[Any], str]:
    return to_json if size <= MAX_SIZE_AT_ONCE else to_json_in_pieces


def _events_of(chunks: Callable[[], Iterator[Body]], size: int) -> list[bytes]:
    return [event_of(chunk, _json_of(size)) for chunk in chunks()]
