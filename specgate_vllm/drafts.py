"""What a drafter said would come next: the answers and announcements of one session that may still come true."""

from collections.abc import Sequence
from typing import NamedTuple

MAX_KEPT = 192


class Known(NamedTuple):
    """Token ids after ``position``. The first ``num_committed`` must be committed before the others are a draft."""

    position: int
    num_committed: int
    token_ids: tuple[int, ...]


class KnownDrafts:
    """Those of a session that was opened with ``length`` tokens.

    A draft is a function of the tokens before it alone: a late answer or an announcement holds, whichever round asked.
    """

    def __init__(self, length: int) -> None:
        self._start = length
        self._token_ids: list[int] = []
        self._known: list[Known] = []

    @property
    def length(self) -> int:
        return self._start + len(self._token_ids)

    def since(self, position: int) -> list[int]:
        """Return the committed tokens from ``position`` on."""
        return self._token_ids[position - self._start :]

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append committed tokens, and drop what they contradict."""
        self._token_ids += token_ids
        self._known = [one for one in self._known if self._may_come_true(one)]

    def add(self, position: int, num_committed: int, token_ids: Sequence[int]) -> None:
        """Keep a draft, unless it is too late or contradicted."""
        one = Known(position, num_committed, tuple(token_ids))
        if self._start <= position <= self.length and self._may_come_true(one):
            self._known = [*self._known, one][-MAX_KEPT:]

    def next(self, gamma: int) -> list[int]:
        """Return what is drafted after the committed tokens, as far as is known: up to ``gamma`` tokens."""
        longest: tuple[int, ...] = ()
        for one in self._known:
            num_passed = self.length - one.position
            rest = one.token_ids[num_passed:]
            if num_passed >= one.num_committed and len(rest) >= len(longest):
                longest = rest
        return list(longest[:gamma])

    def _may_come_true(self, one: Known) -> bool:
        passed = self.since(one.position)
        return len(one.token_ids) > len(passed) and one.token_ids[: len(passed)] == tuple(passed)
