"""A text that grows by the target's tokens, read and continued in those of a draft with another tokenizer.

Committed tokens stay what they are: only what is drafted is encoded anew (string-level exact match: Timor et al.,
2025).
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from specgate.token_bytes import special_token_ids, token_bytes
from specgate.types import TokenIds

WINDOW = 64
"""Characters at the text's end that may be tokenized anew when it grows: longer than a word and what follows it."""
SEARCHED = 256
"""Characters before them among which a space is looked for: some languages have none."""


class TokenizerPair:
    """The draft's tokenizer and the target's, both as transformers has them.

    Attributes:
        begins_with: what the draft's tokenizer puts before a text by itself, in place of what the target's does.
    """

    def __init__(self, draft: Any, target: Any) -> None:
        self.draft, self.target = draft.backend_tokenizer, target.backend_tokenizer
        self.draft_bytes, self.target_bytes = token_bytes(draft), token_bytes(target)
        self.target_bytes |= {token_id: name.encode() for name, token_id in special_token_ids(target).items()}
        self.begins_with: list[int] = draft("")["input_ids"]
        self._theirs: list[int] = target("")["input_ids"]

    def without_beginning(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the target's tokens without those that its tokenizer puts before a text by itself."""
        length = len(self._theirs)
        return token_ids[length:] if list(token_ids[:length]) == self._theirs else token_ids


class Retokenized:
    """One text in the tokens of both.

    Attributes:
        own_ids: the draft's tokens of it, without a character that is not whole yet.
    """

    def __init__(self, pair: TokenizerPair, token_ids: Sequence[int]) -> None:
        self._pair = pair
        self._utf8 = getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._spans: list[tuple[int, int]] = []
        self.own_ids: list[int] = list(pair.begins_with)
        self.extend(pair.without_beginning(token_ids))

    def extend(self, token_ids: Sequence[int]) -> int:
        """Add tokens of the target; return how many of the draft's own tokens stay what they are."""
        before = len(self._text)
        self._text += self._utf8.decode(b"".join(self._pair.target_bytes.get(one, b"") for one in token_ids))
        num_kept, parting = len(self._spans), self._parting(before)
        while num_kept and self._spans[num_kept - 1][1] > parting:
            num_kept -= 1
        del self._spans[num_kept:]
        stay = len(self._pair.begins_with) + num_kept
        del self.own_ids[stay:]
        for token_id, span in _encoded(self._pair.draft, self._text, self._spans[-1][1] if num_kept else 0):
            self.own_ids.append(token_id)
            self._spans.append(span)
        return stay

    @property
    def is_whole(self) -> bool:
        """Whether the text ends with a whole character."""
        return not self._utf8.getstate()[0]

    def in_target_tokens(self, own_ids: Sequence[int], *, ended: bool) -> tuple[TokenIds, list[int]]:
        """Return a continuation by the draft's tokens in the target's, and where each ends in its bytes.

        But for the first one they leave out what the draft's next token may change, unless the draft has ``ended``.
        """
        pieces = [*map(self.bytes_of, own_ids)]
        text = b"".join(pieces).decode("utf-8", errors="ignore")
        whole = self._text + text
        encoded = _encoded(self._pair.target, whole, self._parting(len(self._text)))
        encoded = [one for one in encoded if one[1][1] > len(self._text)]
        if encoded and encoded[0][1][0] < len(self._text):
            encoded = _encoded(self._pair.target, whole, len(self._text))
        stable = len(b"".join(pieces if ended else pieces[:-1]))
        ids, ends, rest = list[int](), list[int](), text.encode()
        for token_id, _ in encoded:
            piece, end = self._pair.target_bytes.get(token_id, b""), len(text.encode()) - len(rest)
            # A tokenizer that writes something else than the text is not followed.
            if not piece or not rest.startswith(piece) or (ids and end + len(piece) > stable):
                break
            rest = rest[len(piece) :]
            ids.append(token_id)
            ends.append(end + len(piece))
        return tuple(ids), ends

    def bytes_of(self, own_id: int) -> bytes:
        """Return what one of the draft's tokens adds to a text."""
        return self._pair.draft_bytes.get(own_id, b"")

    def _parting(self, end: int) -> int:
        """Return a place before the window at ``end``; where a word ends, as tokenizers part a text, if one does."""
        last = max(end - WINDOW, 0)
        places = range(last, max(last - SEARCHED, 0), -1)
        return next((at for at in places if self._text[at].isspace() and not self._text[at - 1].isspace()), last)


def _encoded(tokenizer: Any, text: str, start: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the tokens of ``text`` from ``start`` on, with the places of their characters in it."""
    found = tokenizer.encode(text[start:], add_special_tokens=False)
    return [(i, (start + first, start + end)) for i, (first, end) in zip(found.ids, found.offsets, strict=True)]
