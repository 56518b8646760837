"""Log-probabilities in the two shapes that OpenAI's endpoints have for them."""

from collections.abc import Callable
from typing import Any

from orchestrator.decode.request import Delta
from orchestrator.decode.text import REPLACEMENT, TextTokenizer
from specgate.types import TokenLogprobs

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not have."""

TokenText = Callable[[int], str]


def token_text(tokenizer: TextTokenizer | None) -> TokenText:
    """Return what names a token: its text, or its id where there is no tokenizer."""
    return "token_id:{}".format if tokenizer is None else tokenizer.token_text


def chat_logprobs(delta: Delta, text_of: TokenText) -> dict[str, Any] | None:
    """Return the ``logprobs`` of a chat's choice, None where none were asked for."""
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


def completion_logprobs(delta: Delta, text_of: TokenText, offset: int) -> dict[str, Any] | None:
    """Return the ``logprobs`` of a completion's choice, None where none were asked for.

    Args:
        offset: of the first token in the answer, counted in characters of the tokens before it.
    """
    if not delta.logprobs:
        return None
    tokens = [text_of(token_id) for token_id in delta.token_ids]
    offsets = [offset + sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [max(one.logprob, LOWEST) for one in delta.logprobs],
        "top_logprobs": [_by_text(token, one, text_of) for token, one in zip(tokens, delta.logprobs, strict=True)],
        "text_offset": offsets,
    }


def _by_text(token: str, logprobs: TokenLogprobs, text_of: TokenText) -> dict[str, float]:
    """Return the likeliest tokens and the emitted one; where two read the same, the likelier."""
    told = {token: max(logprobs.logprob, LOWEST)}
    for token_id, logprob in logprobs.top:
        text = text_of(token_id)
        told[text] = max(logprob, told.get(text, LOWEST))
    return told
