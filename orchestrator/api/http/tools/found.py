"""Calls in any text: found behind their marker, returned when they are complete."""

import re
from collections.abc import Collection

from orchestrator.api.http.tools.calls import CallStart, Content, Event
from orchestrator.api.http.tools.marked import MarkedText, Marking

MAX_FAILURES = 64
"""Markers in one answer without a call after them. What follows the last of them is content: the text after a marker is
read again for the next one, and there may be thousands."""
_FIRST_BARE = re.compile(r"\s*(?=\{)")
_NEXT_BARE = re.compile(r"\s*;\s*(?=\{)")


class FoundReader:
    """Reads any text. See ``CallReader``.

    Text after a marker that is not a call is content, and so is the marker. White space beside a call belongs to it.

    Args:
        names: of the functions.
        parallel: whether there may be several calls; otherwise what follows the first one is content.
    """

    is_in_call = False

    def __init__(self, marking: Marking, names: Collection[str], *, parallel: bool) -> None:
        self._marking = marking
        self._names = names
        self._parallel = parallel
        self._pending = ""
        """What is not returned yet. From ``_start`` on it may be a call, where ``_marked`` is set."""
        self._start = 0
        self._marked: MarkedText | None = None
        self._num_calls = 0
        self._num_failures = 0
        self._has_content = False
        self._is_behind_call = False

    def push(self, text: str) -> list[Event]:
        self._pending += text
        return self._read(ended=False)

    def finish(self) -> list[Event]:
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> list[Event]:
        events: list[Event] = []
        while self._pending:
            found = self._text(ended=ended) if self._marked is None else self._call(self._marked, ended=ended)
            if found is None:
                break
            events += found
        return events

    def _text(self, *, ended: bool) -> list[Event] | None:
        """Return the content before the next marker, None where more text has to decide that."""
        if self._is_behind_call:
            self._pending = self._pending.lstrip()
        opening = self._opening()
        if opening is not None:
            start, end = opening
            before = len(self._pending[:start].rstrip())
            self._start, self._marked = end - before, MarkedText(self._marking, self._names)
            return self._content(before)
        if ended:
            return self._content(len(self._pending))
        return self._content(self._num_sure()) or None

    def _call(self, marked: MarkedText, *, ended: bool) -> list[Event] | None:
        """Return the call behind a marker, or the marker as content; None where more text has to decide that."""
        found = marked.read(self._pending[self._start :], ended=ended)
        if found is None:
            return None
        self._marked = None
        num_calls = sum(isinstance(event, CallStart) for event in found.events)
        if not num_calls or (num_calls > 1 and not self._parallel):
            self._num_failures += 1
            # For a bare call at least its bracket, so that the same bracket opens no other call.
            return self._content(self._start + (self._pending[: self._start].strip() == ""))
        self._pending = self._pending[self._start + found.end :]
        self._num_calls += num_calls
        self._is_behind_call = True
        return found.events

    def _opening(self) -> tuple[int, int] | None:
        """Return where the next marker begins and ends."""
        if self._num_failures == MAX_FAILURES or (self._num_calls and not self._parallel):
            return None
        if self._marking.bare and not self._has_content:
            bare = (_NEXT_BARE if self._num_calls else _FIRST_BARE).match(self._pending)
            if bare is not None:
                return 0, bare.end()
        start = self._pending.find(self._marking.marker)
        return None if start < 0 else (start, start + len(self._marking.marker))

    def _num_sure(self) -> int:
        """Return how many characters are content, whatever follows."""
        text, marker = self._pending, self._marking.marker
        if self._marking.bare and self._num_calls and not self._has_content and text.strip() == ";":
            return 0
        longest = min(len(text), len(marker) - 1)
        held = next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
        return len(text[: len(text) - held].rstrip())

    def _content(self, size: int) -> list[Event]:
        """Return so many characters as content, and forget them."""
        if not size:
            return []
        text, self._pending = self._pending[:size], self._pending[size:]
        self._has_content = self._has_content or bool(text.strip())
        self._is_behind_call = False
        return [Content(text)]
