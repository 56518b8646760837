"""A text in the tokens of two tokenizers, over random Unicode: it is read as it is, and drafts continue it."""

from hypothesis import given, settings

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from tests.support.retokenizing import CASES, TOKENIZERS, Case, check


@settings(max_examples=300)
@given(CASES)
def test_what_is_drafted_continues_the_text(case: Case) -> None:
    check(case)


def test_only_what_the_next_token_may_change_is_left_out() -> None:
    """And nothing where the draft ended, nor in the middle of a character."""
    own = TOKENIZERS["bytes"]
    assert own is not None
    pair = TokenizerPair(own, own)
    text = Retokenized(pair, own("def add(a, b):")["input_ids"])
    drafted = own("\n    return a")["input_ids"]
    assert text.in_target_tokens(drafted, ended=True)[0] == tuple(drafted)
    assert text.in_target_tokens(drafted, ended=False)[0] == tuple(drafted[:-1])
    assert text.is_whole
    text.extend(own("🙂")["input_ids"][:1])
    assert not text.is_whole
