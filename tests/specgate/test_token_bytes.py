"""What tokens stand for, compared with what the tokenizers themselves decode."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from specgate.token_bytes import token_bytes
from specgate.tokenizer import load_tokenizer
from tests.support.letters import write_letters
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR

TOKENIZERS = {"bytes": load_tokenizer(str(PAIR / "target")), "pieces": sentencepiece_tokenizer()}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.text(max_size=40))
def test_the_bytes_of_a_texts_tokens_are_the_texts(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer is not None
    known = token_bytes(tokenizer)
    found = b"".join(known[i] for i in tokenizer(text, add_special_tokens=False)["input_ids"])
    # SentencePiece puts a space before a text.
    assert found in (text.encode(), b" " + text.encode())


def test_a_vocabulary_of_another_kind_has_none(tmp_path: Path) -> None:
    write_letters(tmp_path, "abc")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert token_bytes(tokenizer) == {0: b"a", 1: b"b", 2: b"c"}
    tokenizer.backend_tokenizer.decoder = None
    tokenizer.backend_tokenizer.pre_tokenizer = None
    assert token_bytes(tokenizer) == {}
