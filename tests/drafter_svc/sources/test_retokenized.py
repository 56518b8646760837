"""A text in the tokens of two tokenizers, over random Unicode: it is read as it is, and drafts continue it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from specgate.tokenizer import load_tokenizer, vocabulary_size
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR

TOKENIZERS = {"bytes": load_tokenizer(str(PAIR / "target")), "pieces": sentencepiece_tokenizer()}
KINDS = list(product(TOKENIZERS, repeat=2))
TEXTS = st.text(
    st.characters(codec="utf-8") | st.sampled_from("  \n\nabcdefghij0123456789é\u0301\u0301日本語🙂\u200d"),
    max_size=200,
)


@pytest.mark.parametrize(("draft", "target"), KINDS)
@given(text=TEXTS, continuation=TEXTS, cuts=st.lists(st.integers(1, 7), min_size=1))
def test_what_is_drafted_continues_the_text(
    draft: str, target: str, text: str, continuation: str, cuts: list[int]
) -> None:
    theirs, own = TOKENIZERS[target], TOKENIZERS[draft]
    assert theirs is not None
    assert own is not None
    pair = TokenizerPair(own, theirs)
    ids = theirs(text)["input_ids"] or theirs("a")["input_ids"]
    growing, done = Retokenized(pair, ids[:1]), 1
    while done < len(ids):
        growing.extend(ids[done : done + cuts[done % len(cuts)]])
        done += cuts[done % len(cuts)]
    read = b"".join(map(growing.bytes_of, growing.own_ids[len(pair.begins_with) :])).decode()
    said = b"".join(pair.target_bytes[i] for i in pair.without_beginning(ids)).decode()
    # SentencePiece puts a space before what it reads.
    assert read == said or ("pieces" in (draft, target) and read.replace(" ", "") == said.replace(" ", ""))
    drafted = own(continuation, add_special_tokens=False)["input_ids"]
    for n in (len(drafted), len(drafted) // 2, 1):
        found, ends = growing.in_target_tokens(drafted[:n], ended=False)
        written = b"".join(map(growing.bytes_of, drafted[:n]))
        assert written.startswith(b"".join(pair.target_bytes[i] for i in found))
        assert all(0 <= i < vocabulary_size(theirs) for i in found)
        assert len(ends) == len(found)
