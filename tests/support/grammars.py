"""Tokenizers of a few letters, and what a grammar allows of them by definition."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specgate.runtime.grammar import Grammars
from specgate.types import Grammar, GrammarKind
from tests.support.models import END_OF_TEXT

LETTERS = ("a", "b", "ab")
"""Two ways to spell one text. The end has the next id."""
END = len(LETTERS)


def letter_grammars(folder: Path, texts: Sequence[str] = LETTERS) -> Grammars:
    """Write a byte-level tokenizer of these texts, in the order of their ids, and of an end; return its grammars."""
    vocab: Mapping[str, int] = {text: token_id for token_id, text in enumerate((*texts, END_OF_TEXT))}
    merges = [(text[:-1], text[-1]) for text in texts if len(text) > 1]
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT).save_pretrained(folder)
    return Grammars(str(folder))


def choice(*texts: str) -> Grammar:
    """One of these texts."""
    return Grammar(GrammarKind.CHOICE, json.dumps(texts))


def regex(pattern: str) -> Grammar:
    """A text that matches."""
    return Grammar(GrammarKind.REGEX, pattern)


def allowed_by_texts(texts: Sequence[str], vocabulary: Sequence[str], written: Sequence[int]) -> list[bool]:
    """Return which ids may follow those that are written where the answer is one of ``texts``, the end's last."""
    text = "".join(vocabulary[token_id] for token_id in written)
    follows = [any(one.startswith(text + more) for one in texts) for more in vocabulary]
    return [*follows, text in texts]
