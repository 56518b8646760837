"""How many headers a request may have."""

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.api.http.errors import ApiError, error_response

MAX_HEADERS = 100


def with_few_headers(app: ASGIApp) -> ASGIApp:
    """Return ``app`` behind a limit on a request's headers."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or len(scope["headers"]) <= MAX_HEADERS:
            return await app(scope, receive, send)
        problem = f"the request has {len(scope['headers'])} headers; {MAX_HEADERS} are the most"
        await error_response(ApiError(431, problem))(scope, receive, send)

    return bounded
