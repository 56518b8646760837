"""Log-probabilities in the two shapes that OpenAI's endpoints have for them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from orchestrator.decode.request import Delta
from orchestrator.decode.text import REPLACEMENT, TextTokenizer
from specgate.types import TokenLogprobs

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TokenTexts:
    """Names tokens by their text, or by their id where there is no tokenizer.

    Args:
        skip_special_tokens: whether the answer's text leaves out special tokens.
    """

    def __init__(self, tokenizer: TextTokenizer | None, *, skip_special_tokens: bool = True) -> None:
        # The likeliest tokens of an answer are the same ones over and over.
        self._text_of = None if tokenizer is None else cache(tokenizer.token_text)
        self.skipped = tokenizer.special_token_ids if tokenizer and skip_special_tokens else frozenset[int]()

    def __call__(self, token_id: int, *, is_first: bool = False) -> str:
        """Return the name of a token; see ``TextTokenizer.token_text``."""
        return f"token_id:{token_id}" if self._text_of is None else self._text_of(token_id, is_first=is_first)

    def num_skipped(self, token_ids: Sequence[int]) -> int:
        """Return the number of tokens before the first one that has text."""
        return next((i for i, token_id in enumerate(token_ids) if token_id not in self.skipped), len(token_ids))


def chat_logprobs(delta: Delta, text_of: TokenTexts) -> dict[str, Any] | None:
    """Return the ``logprobs`` of a chat's choice, None if none are wanted."""
    if not delta.logprobs:
        return None
    content = [
        _chat_entry(text_of(token_id), one.logprob)
        | {"top_logprobs": [_chat_entry(text_of(other), logprob) for other, logprob in one.top]}
        for token_id, one in zip(delta.token_ids, delta.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _chat_entry(text: str, logprob: float) -> dict[str, Any]:
    # A part of a character has bytes of its own, but which ones its text does not say.
    as_bytes = None if REPLACEMENT in text else list(text.encode())
    return {"token": text, "logprob": max(logprob, LOWEST), "bytes": as_bytes}


class CompletionLogprobs:
    """The ``logprobs`` of a completion's choice, part by part.

    Args:
        before: tokens that precede the choice's text and are not in it.
    """

    def __init__(self, text_of: TokenTexts, before: Sequence[int]) -> None:
        self._text_of = text_of
        self._offset = 0
        self._has_text_before = text_of.num_skipped(before) < len(before)

    def next(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any] | None:
        """Return those of the next tokens, None if none are wanted.

        Args:
            logprobs: one a token; None for a token with nothing before it.
        """
        if not logprobs:
            return None
        tokens, offsets, top = list[str](), list[int](), list[dict[str, float] | None]()
        for token_id, one in zip(token_ids, logprobs, strict=True):
            text_of = partial(self._text_of, is_first=not self._has_text_before)
            tokens.append(text_of(token_id))
            offsets.append(self._offset)
            top.append(None if one is None else _by_text(tokens[-1], one, text_of))
            if token_id not in self._text_of.skipped:
                self._offset += len(tokens[-1])
                self._has_text_before = True
        return {
            "tokens": tokens,
            "token_logprobs": [one and max(one.logprob, LOWEST) for one in logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _by_text(token: str, logprobs: TokenLogprobs, text_of: Callable[[int], str]) -> dict[str, float]:
    """Return the likeliest tokens and the emitted one by text. Of two with the same text the likelier stays."""
    by_text = {token: max(logprobs.logprob, LOWEST)}
    for token_id, logprob in logprobs.top:
        text = text_of(token_id)
        by_text[text] = max(logprob, by_text.get(text, LOWEST))
    return by_text


def trimmed(logprobs: Sequence[TokenLogprobs], num_top: int | None) -> list[TokenLogprobs]:
    """Return them with no more than ``num_top`` of the likeliest tokens each."""
    return [replace(one, top=one.top[:num_top]) for one in logprobs]


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], text_of: TokenTexts
) -> list[dict[str, Any] | None]:
    """Return vLLM's ``prompt_logprobs``: for each prompt token, by token id, its own and those of the likeliest tokens.

    The first token has none. ``rank`` is null for a token that is not among the likeliest ones.
    """
    first = text_of.num_skipped(token_ids)
    pairs = enumerate(zip(token_ids[1:], logprobs, strict=True), 1)
    return [None, *(_by_id(token_id, one, partial(text_of, is_first=i <= first)) for i, (token_id, one) in pairs)]


def _by_id(token_id: int, logprobs: TokenLogprobs, text_of: Callable[[int], str]) -> dict[str, Any]:
    ranked = {one: (rank, logprob) for rank, (one, logprob) in enumerate(logprobs.top, 1)}
    entries = {token_id: (None, logprobs.logprob)} | ranked
    return {
        str(one): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": text_of(one)}
        for one, (rank, logprob) in entries.items()
    }
