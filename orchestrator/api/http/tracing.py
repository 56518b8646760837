"""A span for each HTTP request that generates: below the client's where it sends a ``traceparent``."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specgate import tracing
from specgate.logs import REQUEST_ID

OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat", "/v1/responses": "chat"}
"""GenAI's name of what each path does; others are not traced."""


class TracingMiddleware:
    """Runs requests that generate in a span each."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        operation = OPERATIONS.get(scope["path"]) if scope["type"] == "http" else None
        if operation is None:
            return await self._app(scope, receive, send)
        attributes = {
            "http.request.method": scope["method"],
            "http.route": scope["path"],
            "gen_ai.operation.name": operation,
            "specgate.request_id": REQUEST_ID.get(),
        }
        name = f"{scope['method']} {scope['path']}"
        with tracing.span(name, tracing.given(scope["headers"]), attributes) as span:

            async def send_seen(message: Message) -> None:
                if span is not None and message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, send_seen)
