"""Calls that a model must make: their spelling, as a grammar, and a reader of it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.api.http.tools.calls import Arguments, CallStart, Content, Event
from orchestrator.api.http.tools.json_text import Extent
from specgate.grammar import WHITESPACE


@dataclass(frozen=True, slots=True)
class Spelling:
    """The text around calls: ``opening`` NAME ``middle`` ARGUMENTS ``closing``, with ``separator`` between two.

    ``separator`` is None where the model's own template takes one call a turn.
    """

    opening: str
    middle: str
    closing: str = ""
    separator: str | None = ""
    before: str = ""
    after: str = ""

    def grammar(self, schemas: Mapping[str, dict[str, Any]], token_ids: Mapping[str, int], *, parallel: bool) -> str:
        """Return the grammar, in llguidance's Lark, of one call or, with ``parallel``, more.

        Args:
            schemas: the JSON schema of each function's arguments, by its name.
            token_ids: of those markers that are tokens.
        """

        def lark(text: str) -> str:
            return _in_lark(text, token_ids)

        calls = "call" if self.separator is None or not parallel else f"call ({lark(self.separator)} call)*"
        heads = [lark(f"{self.opening}{name}{self.middle}") for name in schemas]
        lines = [
            f"start: {lark(self.before)} {calls} {lark(self.after)}",
            f"call: ({' | '.join(f'{head} arguments_{i}' for i, head in enumerate(heads))}) {lark(self.closing)}",
            *(f"arguments_{i}: %json {json.dumps(_bounded(one))}" for i, one in enumerate(schemas.values())),
        ]
        return "\n".join(lines)


def _in_lark(text: str, token_ids: Mapping[str, int]) -> str:
    """Return a text in Lark, with tokens by their ids: the library cannot read a token's text as that token."""
    parts = re.split(f"({'|'.join(map(re.escape, token_ids))})", text) if token_ids else [text]
    # Lark takes an empty text for a terminal that matches nothing.
    return " ".join(f"<[{token_ids[part]}]>" if part in token_ids else json.dumps(part) for part in parts if part)


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with bounded whitespace, unless it has a pattern of its own."""
    own = schema.get("x-guidance")
    return schema | {"x-guidance": {"whitespace_pattern": WHITESPACE} | (own if isinstance(own, dict) else {})}


class SpelledReader:
    """Reads calls in one spelling. See ``CallReader``."""

    def __init__(self, spelling: Spelling) -> None:
        self._head = re.compile(f"{re.escape(spelling.opening)}([A-Za-z0-9_-]+){re.escape(spelling.middle)}")
        self._pending = ""
        self._extent: Extent | None = None
        self._num_calls = 0

    @property
    def is_in_call(self) -> bool:
        return self._extent is not None

    def push(self, text: str) -> list[Event]:
        self._pending += text
        events: list[Event] = []
        while found := self._arguments() if self.is_in_call else self._start():
            events += found
        return events

    def finish(self) -> list[Event]:
        # The text ends in the head of the first call, before its name is known.
        return [] if self._num_calls or not self._pending else [Content(self._pending)]

    def _start(self) -> list[Event]:
        found = self._head.search(self._pending)
        if found is None:
            return []
        self._pending = self._pending[found.end() :]
        self._extent = Extent()
        self._num_calls += 1
        return [CallStart(found.group(1))]

    def _arguments(self) -> list[Event]:
        assert self._extent is not None
        end = self._extent.end(self._pending)
        text = self._pending[:end]
        self._pending = self._pending[len(text) :]
        if end is not None:
            self._extent = None
        return [Arguments(text)] if text else []
