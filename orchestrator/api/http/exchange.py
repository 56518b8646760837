"""One request to the HTTP application and its answer, without an HTTP connection."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Scope

from orchestrator.api.http.choice import Body
from orchestrator.api.http.rendering import to_json
from orchestrator.api.http.sse import HEADERS

DATA, END, DONE = b"data: ", b"\n\n", b"[DONE]"

_log = logging.getLogger(__name__)


class Exchange:
    """One request and its answer.

    Args:
        write: takes the data of each server-sent event, and returns once there is room for the next. None: there are
            no such events.
        body: the request's.
        taken: called when the application has taken the body.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]] | None = None,
        body: bytes = b"",
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        self.body: bytes | None = body
        """None once the application has it: a long one is kept by nobody else."""
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.content = b""
        """Of an answer that is no stream of events."""
        self.complete = False
        self.left = asyncio.Event()
        """Set when the client wants no more of the answer."""
        self._write = write
        self._taken = taken

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Send the request, and return when its answer has ended, whole or not."""
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            # As uvicorn does. The application has answered, if it could.
            _log.exception("a request failed that came over a WebSocket")

    def whole(self) -> tuple[bytes, ...]:
        """Return the messages of an answer that is no stream. That of a refusal has what HTTP says in its head."""
        if self.status == 200:
            return self.content, DONE
        refusal: Body = json.loads(self.content) | {"status": self.status}
        for name, value in self.headers:
            if name == b"retry-after":
                refusal["retry_after_s"] = int(value)
        return (to_json(refusal).encode(),)

    async def _receive(self) -> Message:
        if self.body is None:
            await self.left.wait()
            return {"type": "http.disconnect"}
        body, self.body = self.body, None
        self._taken()
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if self.left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
            return
        body, self.complete = message.get("body", b""), not message.get("more_body", False)
        if self._write is None or HEADERS[0] not in self.headers:
            self.content += body
        elif body.startswith(DATA):
            # Anything else is a comment, which keeps proxies from closing a silent answer.
            await self._write(body.removeprefix(DATA).removesuffix(END))
