"""What the tokens of a vocabulary stand for, in bytes: so that two vocabularies can be compared."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""SentencePiece's space."""


def token_bytes(tokenizer: "PreTrainedTokenizerBase") -> dict[int, bytes]:
    """Return the bytes that each token adds to a text, by its id; special tokens, which add none, are left out.

    Where two tokens add the same, such as SentencePiece's ``a`` and ``<0x61>``, the one that it writes comes first.

    Empty where the vocabulary spells neither as GPT-2's (bytes as characters) nor as SentencePiece's (U+2581 for a
    space, ``<0x0A>`` for a byte).
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {}
    told = json.loads(backend.to_str())
    kinds = set(_kinds(told.get("decoder"))) | set(_kinds(told.get("pre_tokenizer")))
    ids: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
    if "ByteLevel" in kinds:
        of_character = _bytes_of_characters()
        known = {
            i: bytes(of_character[c] for c in token) for token, i in ids.items() if of_character.keys() >= set(token)
        }
    elif kinds & {"Metaspace", "ByteFallback"}:
        of_one_byte = {i for token, i in ids.items() if _BYTE_TOKEN.fullmatch(token)}
        by_use = sorted(ids.items(), key=lambda both: (both[1] in of_one_byte, both[1]))
        known = {i: _of_piece(token) for token, i in by_use}
    else:
        return {}
    known |= {one["id"]: one["content"].encode() for one in told.get("added_tokens") or ()}
    special = set(special_token_ids(tokenizer).values())
    return {i: text for i, text in known.items() if text and i not in special}


def special_token_ids(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """Return the ids of the special tokens, by their names."""
    return {one.content: i for i, one in tokenizer.added_tokens_decoder.items() if one.special}


def _of_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _kinds(part: Any) -> Iterator[str]:
    """Yield the types of a serialized part of a tokenizer, and of what it consists of."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for key in ("decoders", "pretokenizers"):
            for one in part.get(key, ()):
                yield from _kinds(one)


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character by which byte-level vocabularies spell one (GPT-2, ``bytes_to_unicode``)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
