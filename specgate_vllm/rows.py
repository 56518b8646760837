"""Which request each row of vLLM's batch is. vLLM tells no request ids, and rows move: only tokens tell."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specgate_vllm.session import Session

MAX_GAP = 64
"""Tokens that a request may have got in steps that the proposer was not told of."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row after a step: a numpy array of ids, ``length`` of which are the request's. ``num_new`` of them are from
    the step; 0 within a prompt.
    """

    token_ids: Any
    length: int
    num_new: int

    @property
    def num_before(self) -> int:
        return self.length - self.num_new

    def begins_with(self, session: Session, num_tokens: int) -> bool:
        """Return whether these are the session's tokens, and all of them."""
        return session.length == num_tokens and session.tokens == self.tokens(num_tokens)

    def tokens(self, end: int) -> bytes:
        """Return the first tokens, as vLLM holds them."""
        return bytes(self.token_ids[:end].tobytes())

    def span(self, start: int, end: int) -> tuple[bytes, list[int]]:
        """Return tokens as vLLM holds them, and as numbers."""
        part = self.token_ids[start:end]
        return part.tobytes(), part.tolist()


class Line:
    """A row in a step: its session, γ and draft. γ is 0 within a prompt and without a session."""

    def __init__(self, row: Row, session: Session | None) -> None:
        self.row, self.session = row, session
        self.gamma, self.draft = 0, list[int]()

    @property
    def drafting(self) -> Session | None:
        """Its session, if that may draft."""
        session = self.session
        return session if session is not None and self.row.num_new and not session.is_refused else None

    @property
    def awaited(self) -> Session | None:
        """Its session, if the draft is shorter than planned and may still grow."""
        session = self.session
        return session if session is not None and len(self.draft) < self.gamma and not session.is_ready else None

    def look(self) -> None:
        """Take what is known by now."""
        if self.session is not None and self.gamma:
            self.draft = self.session.known.next(self.gamma)


class Rows:
    """The sessions, and which row was whose in the last step."""

    def __init__(self) -> None:
        self.sessions: dict[Session, None] = {}
        self._last: list[Session | None] = []

    def match(self, rows: Sequence[Row]) -> list[Session | None]:
        """Return each row's session, at its tokens of the step before or shortly before; None: it has none yet.

        The row's last session is tried first. Then all others are looked up by all their tokens, each for one row: of
        rows with the same tokens it does not matter which is which.
        """
        found: list[Session | None] = [None] * len(rows)
        free = {one: None for one in self.sessions if not one.is_closed}
        last = [*self._last, *[None] * len(rows)]
        for i, row in enumerate(rows):
            if (session := last[i]) in free and row.begins_with(session, row.num_before):
                found[i] = session
                del free[session]
        index: dict[bytes, list[Session]] = defaultdict(list)
        for one in free if None in found else ():
            index[bytes(one.tokens)].append(one)
        for i, row in enumerate(rows):
            if found[i] is None and index and (same := index[row.tokens(row.num_before)]):
                found[i] = session = same.pop()
                del free[session]
        for i, row in enumerate(rows):
            if found[i] is None and (session := last[i]) in free and 0 < row.num_before - session.length <= MAX_GAP:
                found[i] = session if row.begins_with(session, session.length) else None
        return found

    def remember(self, sessions: Sequence[Session | None], now_s: float) -> None:
        """Note who was in the step."""
        self._last, there = list(sessions), set(sessions)
        for one in self.sessions:
            one.missed_at_s = None if one in there else one.missed_at_s or now_s
