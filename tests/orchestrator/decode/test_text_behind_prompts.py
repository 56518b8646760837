"""A completion's text is what its tokens add to the text of their prompt, wherever the prompt ends."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.text import TextTokenizer
from tests.support.sentencepiece import BEGIN, END, TURN, ids_of

PARTS = ("The", "fox", " ", "  ", "日本語", "🦊", "é", "ß", "\n", " is", ",", ".", "x ", "\ufffd", BEGIN, END, TURN)
FOX = ("<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>")


class Python:
    """A tokenizer that is written in Python, and how many tokens it decoded."""

    backend_tokenizer = None

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.all_special_ids = tokenizer.special_token_ids
        self.num_decoded = 0

    def decode(self, ids: list[int], skip_special_tokens: bool, **_: object) -> str:
        self.num_decoded += len(ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return self._tokenizer.token_strings(ids)


def completed(tokenizer: TextTokenizer, prompt: Sequence[int], answer: Sequence[int], **flags: Any) -> list[str]:
    """Return the text as it comes, its end last."""
    decoder = tokenizer.incremental(prompt, **flags)
    return [*(decoder.step((token_id,)) for token_id in answer), decoder.flush()]


@pytest.mark.parametrize("is_python", [False, True])
@pytest.mark.parametrize("kind", ["sentencepiece", "byte_level"])
def test_prompt_and_completion_are_the_whole_text_wherever_it_is_cut(
    request: pytest.FixtureRequest, kind: str, is_python: bool
) -> None:
    fast = request.getfixturevalue(kind)
    tokenizer = TextTokenizer(Python(fast)) if is_python else fast
    for seed, skips in product(range(15), (True, False)):
        ids = fast.encode("".join(random.Random(seed).choices(PARTS, k=8)))
        whole = tokenizer.decode(ids, skip_special_tokens=skips)
        for cut in range(len(ids) + 1):
            prompt = tokenizer.prompt_text(ids[:cut], skip_special_tokens=skips)
            answer = completed(tokenizer, ids[:cut], ids[cut:], skip_special_tokens=skips)
            assert prompt + "".join(answer) == whole, (seed, cut)


@pytest.mark.parametrize(
    ("prompt", "answer", "texts"),
    [
        (["▁France"], ["▁is", "▁Paris"], [" is", " Paris", ""]),
        # No text is before these.
        ([], ["▁is", "▁Paris"], ["is", " Paris", ""]),
        ([BEGIN], ["▁is", "▁Paris"], ["is", " Paris", ""]),
        # There is text before these marks, which it does not show.
        (["▁is", TURN], ["▁Paris"], [" Paris", ""]),
        (["▁is", *[TURN] * 20], ["▁Paris"], [" Paris", ""]),
        # The space that is stripped is the prompt's.
        (["▁"], ["▁Paris"], [" Paris", ""]),
        (["▁"], ["P"], ["P", ""]),
        (["▁is", "▁"], ["▁Paris"], [" Paris", ""]),
        # A character that the prompt leaves unfinished.
        (["▁is", *FOX[:3]], [FOX[3], "▁Paris"], ["🦊", " Paris", ""]),
        (["▁is", *FOX[:3]], ["▁Paris"], ["��� Paris", ""]),
        (["▁is", *FOX[:3]], [], ["���"]),
        ([*FOX * 5, *FOX[:2], TURN], FOX[2:], ["", "🦊", ""]),
        # A byte behind it that is a character by itself, which its tokens do not tell from one that goes on.
        ([*FOX, "<0x20>"], ["▁Paris"], ["  Paris", ""]),
        ([*FOX, "<0x20>"], [], [" "]),
        # Bytes that are no character take back text; what follows goes on behind them.
        (["▁is"], ["日", "<0xFF>", "▁Paris", "▁is"], ["日", "", "� Paris", " is", ""]),
        ([*FOX], ["<0xFF>", "▁Paris", "▁is"], ["", "� Paris", " is", ""]),
    ],
)
def test_sentencepiece(sentencepiece: TextTokenizer, prompt: list[str], answer: list[str], texts: list[str]) -> None:
    assert completed(sentencepiece, ids_of(sentencepiece, prompt), ids_of(sentencepiece, answer)) == texts


def test_special_tokens_that_are_shown(sentencepiece: TextTokenizer) -> None:
    prompt, answer = ids_of(sentencepiece, [TURN]), ids_of(sentencepiece, [BEGIN, TURN, "▁is", END])
    shown = ids_of(sentencepiece, [TURN])
    assert completed(sentencepiece, prompt, answer, shown_token_ids=shown) == ["", TURN, " is", "", ""]
    assert "".join(completed(sentencepiece, prompt, answer, skip_special_tokens=False)) == f"{BEGIN}{TURN} is{END}"


@pytest.mark.parametrize("end", [["▁is"], [TURN] * 5000, [*FOX[:3]], ["<0xFF>"] * 20])
def test_no_more_than_the_end_of_a_prompt_is_decoded(sentencepiece: TextTokenizer, end: list[str]) -> None:
    counting = Python(sentencepiece)
    TextTokenizer(counting).incremental(ids_of(sentencepiece, [*["▁the"] * 5000, *end]))
    assert counting.num_decoded < 100


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"),
    [((" Paris",), "", 1), (("is Paris",), " Paris.", 3), (("e", "France is"), " Paris.", 3), ((" ",), "", 1)],
)
def test_stop_strings_see_the_first_space_and_nothing_of_the_prompt(
    sentencepiece: TextTokenizer, stop: tuple[str, ...], text: str, num_tokens: int
) -> None:
    prompt, answer = (ids_of(sentencepiece, one) for one in (["▁France", "▁is"], ["▁Paris", ".", END]))
    output = OutputText(sentencepiece.incremental(prompt), stop)
    pushed = output.push(answer)
    assert (pushed.text + ("" if output.stopped else output.finish()), pushed.num_tokens) == (text, num_tokens)


def test_one_token_reads_as_in_a_text(sentencepiece: TextTokenizer, byte_level: TextTokenizer) -> None:
    ids = ids_of(sentencepiece, ["▁Paris", "▁", "é", "<0xF0>", TURN])
    assert list(map(sentencepiece.token_text, ids)) == [" Paris", " ", "é", "\ufffd", TURN]
    assert sentencepiece.token_text(ids[0], is_first=True) == "Paris"
    for token_id in range(byte_level.vocab_size):
        assert byte_level.token_text(token_id) == byte_level.decode([token_id], skip_special_tokens=False)
