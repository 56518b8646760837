"""JSON within a text: where it ends while it arrives in pieces, and the spelling of each part."""

import json
import re
from typing import Any, NoReturn

_MARK = re.compile(r'["\\{}\[\]]')
_SPACE = re.compile(r"[ \t\n\r]*")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# Numbers stay texts: nothing reads them, and a number may be too long for Python.
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)


class Extent:
    """Finds the end of an object or a list. It counts brackets outside of strings; it does not pair them."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def end(self, text: str, start: int = 0) -> int | None:
        """Return the offset in ``text`` after the last bracket. None: it is not there yet; then call again with what
        follows ``text``.
        """
        if self._is_escaped and start < len(text):
            self._is_escaped, start = False, start + 1
        while found := _MARK.search(text, start):
            start, mark = found.end(), found.group()
            if mark == "\\" and self._in_string:
                self._is_escaped = start == len(text)
                start += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and mark != "\\":
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    return start
        return None


class Part:
    """A JSON value and its spelling."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text


def whole(text: str) -> Part | None:
    """Return the JSON value that ``text`` is, None if it is not one."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return Part(value, text) if end == len(text) else None


def members(text: str) -> dict[str, Part]:
    """Return the members of an object by name. ``text`` must be an object of JSON."""
    found: dict[str, Part] = {}
    at = _behind_space(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        # Past the colon.
        found[name], at = _part(text, _behind_space(text, at) + 1)
        at = _behind_comma(text, at)
    return found


def elements(text: str) -> list[Part]:
    """Return the elements of a list. ``text`` must be a list of JSON."""
    found: list[Part] = []
    at = _behind_space(text, 1)
    while text[at] != "]":
        part, at = _part(text, at)
        found.append(part)
        at = _behind_comma(text, at)
    return found


def _part(text: str, at: int) -> tuple[Part, int]:
    start = _behind_space(text, at)
    value, end = _DECODER.raw_decode(text, start)
    return Part(value, text[start:end]), end


def _behind_comma(text: str, at: int) -> int:
    at = _behind_space(text, at)
    return _behind_space(text, at + 1) if text[at] == "," else at


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
