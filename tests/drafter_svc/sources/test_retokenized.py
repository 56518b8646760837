"""A text in the tokens of two tokenizers, over random Unicode: it is read as it is, and drafts continue it."""

import pytest
from hypothesis import given, settings

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from tests.support.retokenizing import CASES, PAIRS, TOKENIZERS, Case, check


@settings(max_examples=300)
@given(CASES)
def test_what_is_drafted_continues_the_text(case: Case) -> None:
    check(case)


def test_only_what_the_next_token_may_change_is_left_out() -> None:
    """And nothing where the draft ended, nor in the middle of a character."""
    own = TOKENIZERS["bundled"]
    pair = TokenizerPair(own, own)
    text = Retokenized(pair, own("def add(a, b):")["input_ids"])
    drafted = own("\n    return a")["input_ids"]
    assert text.in_target_tokens(drafted, ended=True)[0] == tuple(drafted)
    assert text.in_target_tokens(drafted, ended=False)[0] == tuple(drafted[:-1])
    assert text.is_whole
    text.extend(own("🙂")["input_ids"][:1])
    assert not text.is_whole


@pytest.mark.parametrize("draft", TOKENIZERS)
@pytest.mark.parametrize("target", TOKENIZERS)
def test_a_text_that_grows_is_read_as_at_once_and_continued(draft: str, target: str) -> None:
    """Also in the middle of a word."""
    own, theirs = TOKENIZERS[draft], TOKENIZERS[target]
    pair, whole = PAIRS[draft, target], "a ab cd. " * 40 + "ab a):\n  cd ab"
    ids = theirs(whole)["input_ids"]
    grown = Retokenized(pair, ids[:1])
    for token_id in ids[1:]:
        grown.extend([token_id])
    assert grown.own_ids == own(whole)["input_ids"]
    for more in ("c de. ab", " cd. ab"):
        before, both = (own(text, add_special_tokens=False)["input_ids"] for text in (":", ":" + more))
        found, _ = grown.in_target_tokens(both[len(before) :], ended=True)
        assert b"".join(pair.target_bytes[i] for i in found).decode() == more
