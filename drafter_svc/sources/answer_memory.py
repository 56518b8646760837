"""Past answers, for drafts of later ones: kept apart by ``cache_salt``, bounded in bytes, and off by default.

Whoever shares a salt can find out by the speed of an answer that somebody was given a text like it. So it is for one
tenant, or for those who trust each other.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from drafter_svc.sources.suffix import BYTES_A_TOKEN, LEAST_MATCH, Place, SuffixText

SHELF_TOKENS = 4
"""What an empty shelf takes, about 2,000 bytes."""
_BETWEEN = -1
"""No token: no match goes from one answer to the next."""


class Shelf:
    """The answers of one salt, in two texts: when the newer one is full it becomes the older one.

    Args:
        num_tokens: of both at the most.
    """

    def __init__(self, num_tokens: int) -> None:
        self._half = max(num_tokens // 2, 1)
        self.texts = (SuffixText(), SuffixText())
        """The newer one first."""

    def __len__(self) -> int:
        return sum(map(len, self.texts))

    def add(self, token_ids: Sequence[int]) -> None:
        """Add an answer, as much of its end as there is room for."""
        kept = [*token_ids[-(self._half - 1) :], _BETWEEN] if self._half > 1 else []
        if len(self.texts[0]) + len(kept) > self._half:
            self.texts = SuffixText(), self.texts[0]
        self.texts[0].extend(kept)


class AnswerMemory:
    """All shelves. What was not used for longest goes first. All calls come from one event loop.

    Args:
        num_bytes: that they take at the most, at ``BYTES_A_TOKEN``.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_tokens = num_bytes // BYTES_A_TOKEN
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept; a shelf is worth some, however empty."""
        return sum(SHELF_TOKENS + len(shelf) for shelf in self._shelves.values())

    def learn(self, salt: str, token_ids: Sequence[int]) -> None:
        """Keep an answer."""
        self._shelf(salt).add(token_ids)
        self._forget()

    def recall(self, salt: str, token_ids: Iterable[int]) -> "Recall":
        """Return what follows a text through the answers that were given under its salt until now."""
        recall = Recall(self._shelf(salt).texts)
        recall.follow(token_ids)
        return recall

    def _shelf(self, salt: str) -> Shelf:
        shelf = self._shelves.setdefault(salt, Shelf(self._num_tokens))
        self._shelves.move_to_end(salt)
        self._forget()
        return shelf

    def _forget(self) -> None:
        while self.num_tokens > self._num_tokens:
            self._shelves.popitem(last=False)


class Recall:
    """Where the end of a text is found in some answers.

    Args:
        texts: the answers; the first ones count.
    """

    def __init__(self, texts: Sequence[SuffixText]) -> None:
        self._texts = texts
        self._places = [Place(0, 0) for _ in texts]

    def follow(self, token_ids: Iterable[int]) -> None:
        """The text goes on."""
        for token_id in token_ids:
            self._places = self._stepped(self._places, token_id)

    def draft(self, most: int, behind: Sequence[int] = ()) -> list[int]:
        """Return up to ``most`` tokens that followed the longest match, as many as it has tokens."""
        places = self._places
        for token_id in behind:
            places = self._stepped(places, token_id)
        text, place = max(zip(self._texts, places, strict=True), key=lambda one: one[1].length)
        if place.length < LEAST_MATCH:
            return []
        end = text.at(place).end
        copied = text.token_ids[end : end + min(most, place.length)]
        return copied[: copied.index(_BETWEEN)] if _BETWEEN in copied else copied

    def _stepped(self, places: Sequence[Place], token_id: int) -> list[Place]:
        return [text.step(place, token_id) for text, place in zip(self._texts, places, strict=True)]
