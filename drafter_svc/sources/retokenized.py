"""A text that grows by the target's tokens, read and continued in those of a draft with another tokenizer.

Committed tokens stay what they are: only what is drafted is encoded anew (string-level exact match: Timor et al.,
2025).
"""

import json
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from specgate.token_bytes import special_token_ids, token_bytes
from specgate.types import TokenIds

WINDOW = 64
"""Characters at the text's end that may be tokenized anew when it grows: longer than a word and what follows it."""
SEARCHED = 256
"""Characters before them among which a space is looked for: some languages have none."""


class TokenizerPair:
    """The draft's tokenizer and the target's, both as transformers has them.

    Attributes:
        begins_with: the draft's own tokens that stand before a text, where the target's has its own.
        end: the target's token that ends a text.
        begins_with_space: the target's tokens of a text have a space in front that the text has not.
    """

    def __init__(self, draft: Any, target: Any) -> None:
        self.draft, self.target = PartEncoder(draft.backend_tokenizer), PartEncoder(target.backend_tokenizer)
        self.draft_bytes, self.target_bytes = token_bytes(draft), token_bytes(target)
        self.target_bytes |= {token_id: name.encode() for name, token_id in special_token_ids(target).items()}
        self.begins_with: list[int] = draft("")["input_ids"]
        self.end: int | None = target.eos_token_id
        self._theirs: list[int] = target("")["input_ids"]
        first = target("a", add_special_tokens=False)["input_ids"][:1]
        self.begins_with_space = any(self.target_bytes.get(one, b"").startswith(b" ") for one in first)

    def without_beginning(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the target's tokens without those that its tokenizer puts before a text by itself."""
        length = len(self._theirs)
        return token_ids[length:] if list(token_ids[:length]) == self._theirs else token_ids


class PartEncoder:
    """Encodes a text from any place on as a tokenizer does in its middle, with the places of its tokens."""

    def __init__(self, backend: Any) -> None:
        told = json.loads(backend.to_str())
        # One that trims tells other places than those of its tokens.
        told["post_processor"] = None
        self._whole = Tokenizer.from_str(json.dumps(told))
        self._rest = Tokenizer.from_str(json.dumps(_without_space_in_front(told)))

    def __call__(self, text: str, start: int) -> list[tuple[int, int, int]]:
        """Return the tokens of ``text`` from ``start`` on; of each its id, and where its characters begin and end."""
        found = (self._rest if start else self._whole).encode(text[start:], add_special_tokens=False)
        return [(i, start + first, start + end) for i, (first, end) in zip(found.ids, found.offsets, strict=True)]


def _without_space_in_front(part: Any) -> Any:
    """Return a serialized tokenizer that puts nothing before a text, as SentencePiece's do."""
    if isinstance(part, list):
        return [_without_space_in_front(one) for one in part if not _is_prepend(one)]
    if not isinstance(part, dict):
        return part
    changed = {key: None if _is_prepend(one) else _without_space_in_front(one) for key, one in part.items()}
    changed |= {"prepend_scheme": "never"} if "prepend_scheme" in part else {}
    return changed | ({"add_prefix_space": False} if "add_prefix_space" in part else {})


def _is_prepend(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "Prepend"


class Retokenized:
    """One text in the tokens of both.

    Attributes:
        own_ids: the draft's tokens of it, without a character that is not whole yet.
    """

    def __init__(self, pair: TokenizerPair, token_ids: Sequence[int]) -> None:
        self._pair = pair
        self._utf8 = getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._ends: list[int] = []
        self.own_ids: list[int] = list(pair.begins_with)
        self.extend(pair.without_beginning(token_ids))

    def extend(self, token_ids: Sequence[int]) -> int:
        """Add tokens of the target; return how many of the draft's own tokens stay what they are."""
        before = len(self._text)
        added = self._utf8.decode(b"".join(self._pair.target_bytes.get(one, b"") for one in token_ids))
        self._text += added.removeprefix(" ") if self._pair.begins_with_space and not self._text else added
        num_kept = bisect_right(self._ends, self._parting(before))
        del self._ends[num_kept:]
        stay = len(self._pair.begins_with) + num_kept
        del self.own_ids[stay:]
        for token_id, _, end in self._pair.draft(self._text, self._ends[-1] if num_kept else 0):
            self.own_ids.append(token_id)
            self._ends.append(end)
        return stay

    @property
    def is_whole(self) -> bool:
        """Whether the text ends with a whole character."""
        return not self._utf8.getstate()[0]

    def in_target_tokens(self, own_ids: Sequence[int], *, ended: bool) -> tuple[TokenIds, list[int]]:
        """Return a continuation by the draft's tokens in the target's, and where each ends in its bytes.

        But for the first one they leave out what the draft's next token may change, unless the draft has ``ended``.
        """
        pieces, end = [*map(self.bytes_of, own_ids)], len(self._text)
        text = b"".join(pieces).decode("utf-8", errors="ignore")
        encoded = self._pair.target(self._text + text, self._parting(end))
        encoded = [one for one in encoded if one[2] > end]
        if encoded and encoded[0][1] < end:
            encoded = self._pair.target(self._text + text, end)
        stable = len(b"".join(pieces if ended else pieces[:-1]))
        ids, ends, said = list[int](), list[int](), text.encode()
        for token_id, *_ in encoded:
            piece, done = self._pair.target_bytes.get(token_id, b""), ends[-1] if ends else 0
            # A tokenizer that writes something else than the text is not followed.
            if not piece or not said.startswith(piece, done) or (ids and done + len(piece) > stable):
                break
            ids.append(token_id)
            ends.append(done + len(piece))
        return tuple(ids), ends

    def bytes_of(self, own_id: int) -> bytes:
        """Return what one of the draft's tokens adds to a text."""
        return self._pair.draft_bytes.get(own_id, b"")

    def _parting(self, end: int) -> int:
        """Return a place before the window at ``end``; where a word ends, as tokenizers part a text, if one does."""
        last = max(end - WINDOW, 0)
        places = range(last, max(last - SEARCHED, 0), -1)
        return next((at for at in places if self._text[at].isspace() and not self._text[at - 1].isspace()), last)
