"""The text after a marker: one call or a list of calls, as far as it has arrived."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.api.http.tools.calls import Arguments, CallStart, Event
from orchestrator.api.http.tools.json_text import Extent, Part, elements, members, whole

MAX_HEAD_CHARACTERS = 96
"""Between a marker and the first bracket."""
_NAME = re.compile(r"\s*([A-Za-z0-9_-]{1,64})\s*(?:\[ARGS\])?\s*")
_MEMBERS = {"name", "arguments", "parameters", "id", "type"}


@dataclass(frozen=True, slots=True)
class Marking:
    """What shows where calls are.

    Args:
        marker: precedes a call or a list of calls.
        closing: may follow it.
        named: the function's name may precede its arguments, in place of an object that has both.
        bare: a call may also begin the text, or follow another call and a semicolon, without a marker.
    """

    marker: str
    closing: str = ""
    named: bool = False
    bare: bool = False


class ParsedCalls(NamedTuple):
    """Calls, and the offset behind them. There are none where the text is something else."""

    events: list[Event]
    end: int


NO_CALL = ParsedCalls([], 0)
NOWHERE, UNKNOWN = -1, -2


class MarkedText:
    """The text after one marker.

    Args:
        names: of the functions.
    """

    def __init__(self, marking: Marking, names: Collection[str]) -> None:
        self._marking = marking
        self._names = names
        self._extent = Extent()
        self._start: int | None = None
        self._num_scanned = 0
        self._end: int | None = None

    def read(self, text: str, *, ended: bool) -> ParsedCalls | None:
        """Return its calls, None where more text has to decide that.

        Args:
            text: all of it that has arrived.
            ended: nothing follows ``text``.
        """
        if self._start is None:
            self._start = self._num_scanned = _first_bracket(text, named=self._marking.named)
        if self._start < 0:
            is_open = not ended and self._start == UNKNOWN
            self._start = None
            return None if is_open else NO_CALL
        if self._end is None:
            self._end = self._extent.end(text, self._num_scanned)
            self._num_scanned = len(text)
        if self._end is None:
            return NO_CALL if ended else None
        rest, closing = text[self._end :].lstrip(), self._marking.closing
        is_closed = bool(closing) and rest.startswith(closing)
        if not (is_closed or ended) and closing.startswith(rest) and closing:
            return None
        events = self._events(text[: self._start], text[self._start : self._end])
        return ParsedCalls(events, len(text) - len(rest) + len(closing) if is_closed else self._end)

    def _events(self, head: str, spelled: str) -> list[Event]:
        """Return the calls; none if one of them is not valid."""
        part = whole(spelled)
        if part is None:
            return []
        if head.strip():
            name = _NAME.fullmatch(head)
            is_call = name is not None and self._marking.named and name.group(1) in self._names
            return [CallStart(name.group(1)), Arguments(spelled)] if name and is_call and spelled[0] == "{" else []
        objects = elements(spelled) if spelled[0] == "[" else [part]
        calls = [self._call(one) for one in objects]
        return [] if [] in calls else [event for call in calls for event in call]

    def _call(self, part: Part) -> list[Event]:
        if not isinstance(part.value, dict) or not part.value.keys() <= _MEMBERS:
            return []
        own = members(part.text)
        given = [own[key] for key in ("arguments", "parameters") if key in own]
        name = own["name"].value if "name" in own else None
        if not isinstance(name, str) or name not in self._names:
            return []
        if len(given) != 1 or not isinstance(given[0].value, dict):
            return []
        return [CallStart(name), Arguments(given[0].text)]


def _first_bracket(text: str, *, named: bool) -> int:
    """Return where an object or a list begins; NOWHERE, or UNKNOWN where more text has to decide that.

    Args:
        named: a name may precede it; then it is an object.
    """
    head = text[:MAX_HEAD_CHARACTERS]
    start = len(head) - len(head.lstrip())
    if head.startswith(("{", "["), start):
        return start
    is_open = len(head) < MAX_HEAD_CHARACTERS
    if start == len(head):
        return UNKNOWN if is_open else NOWHERE
    start = head.find("{") if named else NOWHERE
    return UNKNOWN if start < 0 and named and is_open else start
