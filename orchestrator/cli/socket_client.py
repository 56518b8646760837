"""A running system over the WebSocket of its HTTP API."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.http11 import Response

from specgate.client import ChatMessage, Delta, Params, Stats
from specgate.errors import (
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    ServiceUnavailable,
    SpecgateError,
    Unauthenticated,
)
from specgate.rpc.tls import ClientTlsFiles, client_context
from specgate.types import FinishReason, TokenSource

Asked = str | Sequence[int] | Sequence[ChatMessage]
_WANTED = {"return_token_ids": True, "return_sources": True, "stream_options": {"include_usage": True}}
_FIELDS = {("messages", "invalid_value"): "chat.messages", ("messages", "context_length_exceeded"): "chat (tokens)"}
"""What the gRPC API calls a field that is at fault, by its name and the error's code here."""
_ERRORS = {401: Unauthenticated, 403: PermissionDenied, 429: ResourceExhausted, 503: ServiceUnavailable}


class SocketClient:
    """Streams answers as ``specgate.client.Client`` does, each over a connection of its own.

    Args:
        url: ws://HOST:PORT or wss://HOST:PORT.
        tls: certificate files; None with wss:// trusts the machine's root certificates.
    """

    def __init__(self, url: str, tls: ClientTlsFiles | None, key: str | None) -> None:
        self._url = f"{url}/v1/stream"
        # As over gRPC: no proxy of the environment.
        self._options: dict[str, Any] = {"proxy": None}
        if key is not None:
            self._options["additional_headers"] = {"Authorization": f"Bearer {key}"}
        if url.startswith("wss:"):
            files = tls or ClientTlsFiles()
            self._options |= {"ssl": client_context(files), "server_hostname": files.server_name or None}

    async def stream(self, prompt: Asked, params: Params) -> AsyncGenerator[Delta, None]:
        """See ``Client.stream``. Log-probabilities are refused: over HTTP they come without token ids."""
        body, reason = json.dumps(_body(prompt, params)), None
        with self._answers():
            async with connect(self._url, **self._options) as socket:
                await socket.send(body)
                while (message := await socket.recv()) != "[DONE]":
                    delta = _delta(json.loads(message), reason)
                    reason = delta.finish_reason
                    # The first event of a chat has its role alone.
                    if delta.token_ids or delta.text or reason:
                        yield delta

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Translate the errors of a connection into those of ``specgate.errors``."""
        try:
            yield
        except InvalidStatus as error:
            raise self._refusal(error.response) from None
        except (OSError, WebSocketException, ValueError, LookupError) as error:
            raise ServiceUnavailable(f"{self._url}: {str(error) or type(error).__name__}") from None

    def _refusal(self, response: Response) -> SpecgateError:
        status, retry_after_s = response.status_code, response.headers.get("Retry-After", "")
        head = {"status": status} | ({"retry_after_s": int(retry_after_s)} if retry_after_s.isdecimal() else {})
        try:
            return _error(json.loads(response.body or b"") | head)
        except (ValueError, LookupError, TypeError):
            # A proxy's own.
            told = {"error": {"message": f"{self._url}: HTTP {status}", "param": None}}
            return _error(told | head, ServiceUnavailable)


def _body(prompt: Asked, params: Params) -> dict[str, Any]:
    if params.logprobs is not None:
        raise InvalidArgument("logprobs", "do not come over a WebSocket; give the gRPC address")
    given = {field.name: getattr(params, field.name) for field in fields(params)} | params.as_dict()
    return _prompt(prompt) | {name: value for name, value in given.items() if value not in (None, "", ())} | _WANTED


def _prompt(prompt: Asked) -> dict[str, Any]:
    messages = [{"role": one.role, "content": one.content} for one in prompt if isinstance(one, ChatMessage)]
    return {"messages": messages} if messages else {"prompt": prompt}


def _delta(event: Mapping[str, Any], reason: FinishReason | None) -> Delta:
    """Return an event's delta. The last event has the statistics alone; ``reason`` came before it."""
    if "error" in event:
        raise _error(event)
    if "cancelled" in event:
        raise ServiceUnavailable("the server ended the request before its answer was complete")
    if not event["choices"]:
        return Delta("", (), (), finish_reason=reason, stats=_stats(event))
    choice = event["choices"][0]
    text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    reason = FinishReason(choice["finish_reason"]) if choice["finish_reason"] else None
    return Delta(text, tuple(choice["token_ids"]), tuple(map(TokenSource, choice["sources"])), finish_reason=reason)


def _stats(event: Mapping[str, Any]) -> Stats:
    told = event["metrics"]["specgate"] | event["usage"] | event["usage"]["prompt_tokens_details"]
    return Stats(**{field.name: told[field.name] for field in fields(Stats)})


def _error(told: Mapping[str, Any], other: type[SpecgateError] = SpecgateError) -> SpecgateError:
    error = told["error"]
    message, param = error["message"], error["param"]
    if param is None:
        failure = _ERRORS.get(told.get("status", 0), other)(message)
        failure.retry_after_s = told.get("retry_after_s", failure.retry_after_s)
        return failure
    return InvalidArgument(_FIELDS.get((param, error["code"]), param), message.removeprefix(f"{param}: "))
