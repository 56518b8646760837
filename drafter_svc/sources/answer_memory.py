"""Past answers, for drafts of later ones: kept apart by who may see them, bounded in bytes, and off by default.

Whoever shares a salt can find out by the speed of an answer that somebody was given a text like it. So it is for one
tenant, or for those who trust each other.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from drafter_svc.sources.suffix import BYTES_A_TOKEN, LEAST_MATCH, Place, SuffixText, longest_copy

SHELF_TOKENS = 4
"""What an empty shelf takes, about 3,000 bytes."""
_BETWEEN = -1
"""No token: no match goes from one answer to the next."""


class Shelf:
    """Answers that may be seen together, in two texts: when the newer one is full it becomes the older one.

    Args:
        num_tokens: of both at the most.
    """

    def __init__(self, num_tokens: int) -> None:
        self._half = num_tokens // 2
        self.texts = (SuffixText(), SuffixText())
        """The newer one first."""

    def __len__(self) -> int:
        return SHELF_TOKENS + sum(map(len, self.texts))

    def add(self, token_ids: Sequence[int]) -> None:
        """Add an answer, as much of its end as there is room for."""
        kept = [*token_ids[-(self._half - 1) :], _BETWEEN]
        if len(self.texts[0]) + len(kept) > self._half:
            self.texts = SuffixText(), self.texts[0]
        self.texts[0].extend(kept)


class AnswerMemory:
    """All shelves. What was not used for longest goes first. All calls come from one event loop.

    Args:
        num_bytes: that they take at the most, at ``BYTES_A_TOKEN``. (What is forgotten lives on while an open session
            looks at it.)
    """

    def __init__(self, num_bytes: int) -> None:
        self._most = num_bytes // BYTES_A_TOKEN
        self._shelves: OrderedDict[Hashable, Shelf] = OrderedDict()
        self.num_tokens = 0
        """That are kept; a shelf is worth some, however empty."""

    def learn(self, reader: Hashable, token_ids: Sequence[int]) -> None:
        """Keep an answer for whoever is the same ``reader``."""
        room = self._most - SHELF_TOKENS
        if len(token_ids) < LEAST_MATCH or room < 2 * LEAST_MATCH:
            return
        shelf = self._shelves.pop(reader, None) or Shelf(room)
        self.num_tokens -= len(shelf) if len(shelf) > SHELF_TOKENS else 0
        shelf.add(token_ids)
        self._shelves[reader] = shelf
        self.num_tokens += len(shelf)
        while self.num_tokens > self._most:
            self.num_tokens -= len(self._shelves.popitem(last=False)[1])

    def recall(self, reader: Hashable, token_ids: Iterable[int]) -> "Recall":
        """Return what follows a text through the answers that were kept for its reader until now."""
        if reader in self._shelves:
            self._shelves.move_to_end(reader)
        recall = Recall(self._shelves[reader].texts if reader in self._shelves else ())
        recall.follow(token_ids)
        return recall


class Recall:
    """Where the end of a text is found in some answers.

    Args:
        texts: the answers.
    """

    def __init__(self, texts: Sequence[SuffixText]) -> None:
        self._texts = texts
        self._places = [Place(0, 0) for _ in texts]

    def follow(self, token_ids: Iterable[int]) -> None:
        """The text goes on."""
        for token_id in token_ids if self._places else ():
            self._places = self._stepped(self._places, token_id)

    def draft(self, most: int, behind: Sequence[int] = (), awaited: int = 0) -> list[int]:
        """Return up to ``most`` tokens that followed the longest match, see ``longest_copy``."""
        places = self._places
        for token_id in behind:
            places = self._stepped(places, token_id)
        if not places:
            return []
        text, place = max(zip(self._texts, places, strict=True), key=lambda one: one[1].length)
        end = text.at(place).end
        copied = text.token_ids[end : end + min(most, longest_copy(place.length, awaited))]
        return copied[: copied.index(_BETWEEN)] if _BETWEEN in copied else copied

    def _stepped(self, places: Sequence[Place], token_id: int) -> list[Place]:
        return [text.step(place, token_id) for text, place in zip(self._texts, places, strict=True)]
