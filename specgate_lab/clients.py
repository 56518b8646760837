"""Small clients of both APIs: the decode loop's requests in, the decode loop's deltas out."""

import http.client
import json
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.terminal.served import delta_of, params_of, stats_of
from specgate.client import Client
from specgate.errors import InternalError, ServiceUnavailable, SpecgateError
from specgate.types import FinishReason, GrammarKind, TokenSource

_NEXT_PIECE_S = 60.0
"""A model that reads a long prompt says nothing meanwhile."""
_DATA = b"data: "
_DONE = b"[DONE]"
_GRAMMARS = {GrammarKind.REGEX: "regex", GrammarKind.LARK: "grammar"}
"""Kinds of grammars that measurements ask for, as ``structured_outputs`` names them."""
_NOTHING = Delta((), ())


def stream_completion(endpoint: str, model: str, request: GenerationRequest, text: str) -> Generator[Delta, None, None]:
    """Yield the deltas of one streamed completion, over a connection of its own.

    Args:
        endpoint: HOST:PORT of the HTTP API.
        model: the served model's name.
        text: the prompt; the request's token ids are not sent.

    Raises:
        ServiceUnavailable: nobody answers, or nobody does any more.
        InternalError: the answer is not one of our API.
        SpecgateError: the API refused the request, or broke it off; with its own message.
    """
    with _answered(endpoint, {**_body(model, request, text), "stream": True}) as response:
        # The first chunk has the prompt's ids alone.
        yield from (delta for delta in map(_delta, _events(response)) if delta != _NOTHING)


def complete(endpoint: str, model: str, request: GenerationRequest, text: str) -> Delta:
    """Return a whole completion; arguments and errors are those of ``stream_completion``."""
    with _answered(endpoint, _body(model, request, text)) as response:
        return _delta(json.loads(response.read()))


@contextmanager
def _answered(endpoint: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """Send a completion's body and yield the answer. Raises as ``stream_completion`` does."""
    with closing(http.client.HTTPConnection(endpoint, timeout=_NEXT_PIECE_S)) as connection:
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise SpecgateError(f"HTTP {response.status}: {response.read().decode(errors='replace')}")
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnavailable(f"the HTTP API at {endpoint}: {error}") from error


def _body(model: str, request: GenerationRequest, text: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": text,
        "max_tokens": request.max_tokens,
        **request.sampling.as_dict(),
        "seed": request.seed,
        "stop": list(request.stop),
        "stop_token_ids": sorted(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
        "gamma": request.gamma,
        "gate": request.gate,
        "gate_threshold": request.threshold,
        "draft_threshold": request.draft_threshold,
        "verification": request.verification,
        "return_sources": True,
        "return_token_ids": True,
        "structured_outputs": {_GRAMMARS[request.grammar.kind]: request.grammar.text} if request.grammar else None,
    }


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or data == _DONE:
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise ServiceUnavailable("the stream broke off inside an event") from None
        if "error" in event:
            raise SpecgateError(event["error"]["message"])
        yield event


def _delta(event: dict[str, Any]) -> Delta:
    try:
        choice = event["choices"][0]
        return Delta(
            token_ids=tuple(choice["token_ids"]),
            sources=tuple(map(TokenSource, choice["sources"])),
            text=choice["text"],
            finish_reason=FinishReason(choice["finish_reason"]) if choice["finish_reason"] else None,
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InternalError(f"the HTTP API answered nonsense: {error!r}") from None


class GrpcClient:
    """One channel to one gRPC API; use it as ``async with``.

    ``stats`` are those of the last stream that was read to its end. Times and outcomes of rounds stay on the server.
    """

    def __init__(self, endpoint: str) -> None:
        self._client = Client(endpoint)
        self.stats = GenerationStats()

    async def __aenter__(self) -> "GrpcClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def stream(self, request: GenerationRequest, text: str | None = None) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of one generation; closing it early cancels the call.

        Args:
            text: the prompt, in the place of the request's token ids.

        Raises:
            SpecgateError: what the server answered, see ``specgate.errors``.
        """
        prompt = request.prompt_token_ids if text is None else text
        async with aclosing(self._client.stream(prompt, params_of(request))) as deltas:
            async for delta in deltas:
                if delta.stats is not None:
                    self.stats = stats_of(delta.stats)
                yield delta_of(delta)

    async def generate(self, request: GenerationRequest, text: str) -> Delta:
        """Return a whole answer to ``text``. Raises as ``stream`` does."""
        return delta_of(await self._client.generate(text, params_of(request)))
