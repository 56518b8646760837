"""The suffix automaton against the plain definition: the longest end of the text that occurs earlier in it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_svc.sources.suffix import LEAST_MATCH, SuffixText

TEXTS = st.integers(2, 5).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=60))


def longest_match(text: Sequence[int], known: int) -> int:
    """Return the length of the longest end of ``text`` that occurs within its first ``known`` tokens, or earlier."""
    for length in range(len(text) - 1, 0, -1):
        end = text[len(text) - length :]
        last_start = min(known, len(text) - 1) - length
        if any(text[start : start + length] == end for start in range(last_start + 1)):
            return length
    return 0


@given(TEXTS)
def test_the_match_is_the_longest_end_that_was_there_before(text: list[int]) -> None:
    suffix_text = SuffixText()
    for index, token_id in enumerate(text):
        suffix_text.extend([token_id])
        so_far, match = text[: index + 1], suffix_text.match
        assert match.length == longest_match(so_far, index + 1)
        assert match.end <= index
        assert so_far[match.end - match.length : match.end] == so_far[len(so_far) - match.length :]


@given(TEXTS, st.integers(1, 20))
def test_a_draft_is_what_followed_there(text: list[int], most: int) -> None:
    drafted = SuffixText(text).draft(most)
    assert len(drafted) <= most
    if drafted:
        length = longest_match(text, len(text))
        assert length >= LEAST_MATCH
        assert len(drafted) == min(most, length + 1)
        # Some earlier place goes on like that, where what repeats goes on repeating.
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        assert any(continued(text, end, len(drafted)) == drafted for end in ends)


def continued(text: Sequence[int], start: int, count: int) -> list[int]:
    longer = list(text)
    for index in range(count):
        longer.append(longer[start + index])
    return longer[len(text) :]


def test_nothing_is_drafted_without_evidence() -> None:
    assert SuffixText().draft(8) == []
    assert SuffixText([1, 2, 3, 4, 1]).draft(8) == []
    assert SuffixText([1, 2, 3, 4, 1, 2]).draft(8) == [3, 4, 1]


@pytest.mark.parametrize(("text", "drafted"), [
    ([1, 2, 3, 4, 5, 6, 1, 2, 3], [4, 5, 6, 1]),
    ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], [8, 1, 2, 3]),
    ([1, 2, 1, 2, 1, 2, 1], [2, 1, 2, 1, 2, 1]),
])  # fmt: skip
def test_the_last_time_counts_and_a_draft_is_one_token_longer_than_its_match(
    text: list[int], drafted: list[int]
) -> None:
    assert SuffixText(text).draft(8) == drafted


def test_a_token_that_is_waited_for_counts_as_matched() -> None:
    """Of what is announced behind it nothing is used where it does not come."""
    text = SuffixText([1, 2, 3, 4, 5, 6, 7, 8, 1])
    assert text.draft(8) == []
    assert text.draft(8, awaited=1) == [2, 3, 4, 5]
    assert text.draft(2, awaited=1) == [2, 3]
    assert SuffixText([1, 2, 3, 4, 5]).draft(8, awaited=1) == []
