"""A request's body: read up to a limit, parsed once, and refused in OpenAI's words."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError

from orchestrator.api.http.errors import ApiError
from orchestrator.api.http.strict import StrictBody
from specgate.errors import ResourceExhausted

MAX_BODY_BYTES = 8 << 20
MAX_PENDING_BYTES = 256 << 20
"""Of all bodies that arrive at a time. There may be a thousand connections."""
MAX_LENGTH_DIGITS = 20
MAX_NAME_CHARACTERS = 64
MAX_FIELDS = 1 << 15
"""In a long body, at any depth. The longest chat has 4,096 messages of some fields each."""
FIELD = re.compile(rb'(?<!\\)"\s*:')
"""The end of a field's name. Within a string a quote is escaped."""
SMALL_BODY_BYTES = 16 << 10
"""Parsing more takes milliseconds in which no other request's tokens are sent."""
CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "literal_error": "unsupported_value",
    "none_required": "unsupported_parameter",
}
"""OpenAI's code by pydantic's type of error; ``*_type`` is invalid_type, all others invalid_value."""

# One at a time: the interpreter runs no two of them at once.
_PARSING = ThreadPoolExecutor(1, thread_name_prefix="parse")
# Of all bodies in the process, which has one event loop.
_PENDING = SimpleNamespace(num_bytes=0)

Model = TypeVar("Model", bound=StrictBody)
Parsed = TypeVar("Parsed")


async def read_model(request: Request, model: type[Model]) -> Model:
    """Return the body as a ``model``.

    Raises:
        ApiError: 415 it is not declared as JSON, 413 it is longer than MAX_BODY_BYTES, 400 it is no JSON or not such
            a request; names the first field at fault.
        ResourceExhausted: other bodies fill the memory for them.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser lets any web page send other types to a server on its reader's machine.
    if media_type != "application/json":
        raise ApiError(415, "the body must be sent with Content-Type: application/json")
    async with _content_of(request) as body:
        return await beside(partial(_parse, model), body)


async def beside(parse: Callable[[bytes], Parsed], body: bytes) -> Parsed:
    """Return what ``parse`` makes of a body. A long one is parsed beside the event loop."""
    if len(body) <= SMALL_BODY_BYTES:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(_PARSING, parse, body)


class ArrivingBody:
    """Counts what has arrived of one body among what has of all."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def grow_to(self, num_bytes: int) -> None:
        """Count so many bytes; 0 at the end. Raises ResourceExhausted if other bodies fill the memory for them."""
        num_new = num_bytes - self._num_bytes
        _PENDING.num_bytes += num_new
        self._num_bytes = num_bytes
        if num_new > 0 and _PENDING.num_bytes > MAX_PENDING_BYTES:
            raise ResourceExhausted("too many long requests arrive at a time; come back later")


@asynccontextmanager
async def _content_of(request: Request) -> AsyncIterator[bytes]:
    """Read a body, and count it among those that arrive as long as the block lasts."""
    declared = request.headers.get("content-length", "0")
    too_long = ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes", code="request_too_large")
    if declared.isdecimal() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > MAX_BODY_BYTES):
        raise too_long
    content, arriving = bytearray(), ArrivingBody()
    try:
        async for part in request.stream():
            content += part
            if len(content) > MAX_BODY_BYTES:
                raise too_long
            arriving.grow_to(len(content))
        yield bytes(content)
    finally:
        arriving.grow_to(0)


def _parse(model: type[Model], body: bytes) -> Model:
    """Return a body as a ``model``. One of too many fields is refused unread: to name all faults takes seconds."""
    if (num_fields := count_fields(body)) > MAX_FIELDS:
        raise ApiError(400, f"the body has {num_fields} fields; {MAX_FIELDS} are the most", code="invalid_value")
    try:
        return model.from_json(body)
    except ValidationError as error:
        raise _refusal(error) from None


def count_fields(body: bytes) -> int:
    """Return how many fields a body has, at any depth, without parsing it."""
    return sum(1 for _ in FIELD.finditer(body))


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    kind, where, problem = first["type"], _path(first["loc"]), first["msg"]
    if kind == "json_invalid":
        return ApiError(400, f"the body is no JSON: {problem.removeprefix('Invalid JSON: ')}", code="invalid_json")
    if kind == "extra_forbidden":
        problem = "is not a parameter that this server knows"
    elif kind in ("literal_error", "none_required"):
        problem = f"{_lower(problem)}; nothing else is supported here"
    else:
        problem = _lower(problem)
    code = CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    return ApiError(400, f"{where or 'the body'}: {problem}", param=where or None, code=code)


def _path(location: tuple[int | str, ...]) -> str:
    """Return ``messages[0].content`` for ("messages", 0, "content"); names that a client made up are cut."""
    path = ""
    for part in location:
        # Pydantic's mark of a mapping's key, behind the key itself.
        if part == "[key]":
            continue
        name = f"[{part}]" if isinstance(part, int) else part[:MAX_NAME_CHARACTERS]
        path += name if not path or isinstance(part, int) else f".{name}"
    return path


def _lower(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
