"""Log-probabilities in the two shapes that OpenAI's endpoints have for them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from orchestrator.decode.request import Delta
from orchestrator.decode.text import REPLACEMENT, TextTokenizer
from specgate.types import TokenLogprobs

LOWEST = -9999.0
"""What stands for minus infinity, which JSON does not have."""

TokenText = Callable[[int], str]


def token_text(tokenizer: TextTokenizer | None) -> TokenText:
    """Return what names the tokens of one answer: by their text, or by their id where there is no tokenizer."""
    # The likeliest tokens are the same ones over and over.
    return "token_id:{}".format if tokenizer is None else cache(tokenizer.token_text)


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


def completion_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], text_of: TokenText, offset: int
) -> dict[str, Any] | None:
    """Return the ``logprobs`` of a completion's choice, None where none were asked for.

    Args:
        logprobs: one a token; None: of a token with nothing before it.
        offset: of the first token in the answer, counted in characters of the tokens before it.
    """
    if not logprobs:
        return None
    tokens = [text_of(token_id) for token_id in token_ids]
    return {
        "tokens": tokens,
        "token_logprobs": [one and max(one.logprob, LOWEST) for one in logprobs],
        "top_logprobs": [one and _by_text(token, one, text_of) for token, one in zip(tokens, logprobs, strict=True)],
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=offset)),
    }


def _by_text(token: str, logprobs: TokenLogprobs, text_of: TokenText) -> dict[str, float]:
    """Return the likeliest tokens and the emitted one; where two read the same, the likelier."""
    told = {token: max(logprobs.logprob, LOWEST)}
    for token_id, logprob in logprobs.top:
        text = text_of(token_id)
        told[text] = max(logprob, told.get(text, LOWEST))
    return told


def trimmed(logprobs: Sequence[TokenLogprobs], num_top: int | None) -> list[TokenLogprobs]:
    """Return them with no more than ``num_top`` of the likeliest tokens each."""
    return [replace(one, top=one.top[:num_top]) for one in logprobs]


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], text_of: TokenText
) -> list[dict[str, Any] | None]:
    """Return vLLM's ``prompt_logprobs``: of each token of the prompt, by token id, its own and those of the likeliest.

    The first one has none. ``rank`` is null where a token is not among the likeliest ones that were asked for.
    """
    return [None, *(_by_id(token_id, one, text_of) for token_id, one in zip(token_ids[1:], logprobs, strict=True))]


def _by_id(token_id: int, logprobs: TokenLogprobs, text_of: TokenText) -> dict[str, Any]:
    ranked = {one: (rank, logprob) for rank, (one, logprob) in enumerate(logprobs.top, 1)}
    told = {token_id: (None, logprobs.logprob)} | ranked
    return {
        str(one): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": text_of(one)}
        for one, (rank, logprob) in told.items()
    }
