"""Past answers: copied from under one salt, forgotten in order, never more than their bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_svc.sources.answer_memory import SHELF_TOKENS, AnswerMemory
from drafter_svc.sources.suffix import BYTES_A_TOKEN, LEAST_MATCH

ANSWER = [1, 2, 3, 4, 5, 6]


def memory(num_tokens: int = 100) -> AnswerMemory:
    return AnswerMemory(num_tokens * BYTES_A_TOKEN)


def test_what_followed_in_an_answer_is_drafted() -> None:
    kept = memory()
    kept.learn("a", ANSWER)
    recall = kept.recall("a", [9, 1])
    assert recall.draft(8) == []
    assert recall.draft(8, [2]) == [3, 4, 5]
    assert recall.draft(8, awaited=1) == [2, 3, 4, 5]
    recall.follow([2])
    assert recall.draft(8) == [3, 4, 5]
    assert recall.draft(2) == [3, 4]


def test_another_salt_sees_nothing() -> None:
    kept = memory()
    kept.learn("a", ANSWER)
    assert kept.recall("b", ANSWER[:3]).draft(8) == []
    assert kept.recall("", ANSWER[:3]).draft(8) == []


def test_no_copy_goes_from_one_answer_to_the_next() -> None:
    kept = memory()
    kept.learn("a", ANSWER)
    kept.learn("a", [7, 7, 7])
    kept.learn("a", [])
    assert kept.recall("a", ANSWER[:5]).draft(8) == [6]
    assert kept.recall("a", ANSWER).draft(8) == []


def test_an_answer_that_comes_meanwhile_is_found_too() -> None:
    kept = memory()
    kept.learn("a", [8, 8, 8])
    recall = kept.recall("a", [9])
    kept.learn("a", ANSWER)
    recall.follow(ANSWER[:3])
    assert recall.draft(8) == [4, 5, 6]


def test_what_was_not_used_for_longest_goes_first() -> None:
    kept = memory(2 * (SHELF_TOKENS + len(ANSWER) + 1) + SHELF_TOKENS)
    kept.learn("a", ANSWER)
    kept.learn("b", ANSWER)
    kept.recall("a", [])
    kept.learn("c", ANSWER)
    found = {salt: kept.recall(salt, ANSWER[:3]).draft(8) == [4, 5, 6] for salt in "abc"}
    assert found == {"a": True, "b": False, "c": True}


def test_answers_that_are_longer_than_half_of_it_keep_their_ends() -> None:
    kept = memory(200)
    for number in range(10):
        kept.learn("a", [number, *range(10, 130)])
        assert kept.recall("a", [126, 127, 128]).draft(8) == [129]
        assert 100 <= kept.num_tokens <= 200


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 17])
@given(answers=st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 3), max_size=20)), max_size=12))
def test_there_are_never_more_bytes_than_allowed(num_tokens: int, answers: list[tuple[str, list[int]]]) -> None:
    kept = memory(num_tokens)
    for salt, answer in answers:
        kept.learn(salt, answer)
        kept.recall(f"{salt}{len(answer)}", answer)
        assert kept.num_tokens <= num_tokens


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8), st.lists(st.integers(0, 2), max_size=12))
def test_a_draft_is_what_followed_the_texts_end_in_some_answer(answers: list[list[int]], text: list[int]) -> None:
    kept = memory(1000)
    kept.learn("a", [9, 9, 9])
    recall = kept.recall("a", text[: len(text) // 2])
    for answer in answers:
        kept.learn("a", answer)
    recall.follow(text[len(text) // 2 :])
    drafted = recall.draft(4)
    if drafted:
        wanted = text[-max(LEAST_MATCH, len(drafted) - 1) :] + drafted
        width = len(wanted)
        assert any(answer[start : start + width] == wanted for answer in answers for start in range(len(answer)))
