"""A message of the WebSocket, read as the request that it stands for."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from orchestrator.api.http.body import MAX_FIELDS, count_fields
from specgate.rpc.request_id import KEY

MAX_CANCEL_BYTES = 64
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
SPACE, COLON = re.compile(r"\s*"), re.compile(r"\s*:\s*")


def is_cancel(message: bytes) -> bool:
    """Return whether a message ends the running request."""
    return len(message) <= MAX_CANCEL_BYTES and _fields(message) == {"cancel": True}


def asked(defaults: str, message: bytes) -> tuple[str, list[tuple[bytes, bytes]], bytes]:
    """Return a request's path, its own headers and its body, which has ``defaults`` before the client's own fields.

    What is no object, or has too many fields, goes on as it is: the application says what is wrong with it.
    """
    fields = None if count_fields(message) > MAX_FIELDS else _fields(message)
    if not isinstance(fields, dict):
        return COMPLETIONS, [], message
    path = CHAT if "messages" in fields else COMPLETIONS
    given = fields.get("id")
    own = _without_id(message) if isinstance(given, str) else message.lstrip()[1:]
    # Of two fields of a name the later one counts.
    body = b"{%b%b%b" % (defaults.encode(), b"" if own.lstrip().startswith(b"}") else b",", own)
    return path, [(KEY.encode(), given.encode())] if isinstance(given, str) else [], body


def _without_id(message: bytes) -> bytes:
    """Return what comes behind the opening brace of an object, without its field ``id``. Numbers stay as written."""
    text = message.decode()
    return ",".join(text[start:end] for name, start, end in _spans(text) if name != "id").encode() + b"}"


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each field of an object, and where the field begins and ends."""
    decode, end = json.JSONDecoder().raw_decode, text.index("{")
    while text[end] != "}":
        start = _past(SPACE, text, end + 1)
        name, end = decode(text, start)
        _, end = decode(text, _past(COLON, text, end))
        yield name, start, end
        end = _past(SPACE, text, end)


def _past(what: re.Pattern[str], text: str, start: int) -> int:
    match = what.match(text, start)
    return match.end() if match else start


def _fields(message: bytes) -> Any:
    try:
        return from_json(message, allow_inf_nan=False)
    except ValueError:
        return None
