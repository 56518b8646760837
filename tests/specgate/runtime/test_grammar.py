"""A session's place in its grammar: the same whatever came in between, and by definition where texts are few."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers

from specgate.errors import InvalidArgument
from specgate.runtime.grammar import Grammars, GrammarState
from specgate.tokenizer import load_tokenizer
from specgate.types import Grammar, GrammarKind
from tests.support.grammars import END, LETTERS, allowed_by_texts, choice, letter_grammars, regex
from tests.support.models import END_OF_TEXT, TOKENIZER_SIZE, write_tokenizer
from tests.support.sessions import make_spec

TEXTS = ("ab", "ba", "abb", "b")
SIZE = len(LETTERS) + 1
SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "integer"}},'
    ' "required": ["a", "b"], "additionalProperties": false}',
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    return letter_grammars(tmp_path_factory.mktemp("letters"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    return Grammars(str(write_tokenizer(tmp_path_factory.mktemp("wide"))))


def opened(grammars: Grammars, grammar: Grammar, vocab_size: int = SIZE, **fields: Any) -> GrammarState:
    fields.setdefault("stop_token_ids", frozenset({vocab_size - 1}))
    return grammars.state(make_spec(grammar=grammar, **fields), vocab_size)


def bits(rows: torch.Tensor, vocab_size: int = SIZE) -> list[list[bool]]:
    return [[bool(row[i // 8] >> i % 8 & 1) for i in range(vocab_size)] for row in rows.tolist()]


def test_rows_are_what_the_texts_allow_behind_each_draft_token(letters: Grammars) -> None:
    state = opened(letters, choice(*TEXTS))
    for committed, draft in (((), (0, 1, 1)), ((0,), (1,)), ((2,), ()), ((), (2, 1, END))):
        state = opened(letters, choice(*TEXTS), output_token_ids=committed, max_tokens=9)
        rows = bits(state.allowed(draft))
        for i, row in enumerate(rows[: len(draft) + (END not in draft)]):
            assert row == allowed_by_texts(TEXTS, LETTERS, (*committed, *draft[:i]))
        assert state.num_known == len(draft) + 1


def test_behind_a_token_that_is_not_allowed_nobody_asks(letters: Grammars) -> None:
    rows = bits(opened(letters, choice(*TEXTS)).allowed((0, 0, 0)))
    assert rows == [[True, True, True, False], [False, True, False, False], *[[True] * SIZE] * 2]


def test_a_text_that_can_only_go_on_one_way_is_spelled_as_the_tokenizer_does(letters: Grammars) -> None:
    assert bits(opened(letters, choice("ab")).allowed(())) == [[False, False, True, False]]


@pytest.mark.parametrize("grammar", [SCHEMA, regex("(the|in|on) [a-z]{2,5}( x)*")], ids=["schema", "regex"])
def test_a_state_after_drafts_and_rollbacks_is_a_fresh_one(wide: Grammars, grammar: Grammar) -> None:
    rng = random.Random(3)

    def some(state: GrammarState, behind: tuple[int, ...]) -> int:
        (row,) = bits(state.allowed((), behind), TOKENIZER_SIZE)
        return rng.choice([i for i, is_allowed in enumerate(row) if is_allowed])

    for _ in range(5):
        state = opened(wide, grammar, TOKENIZER_SIZE)
        committed: tuple[int, ...] = ()
        for _ in range(12):
            branches = []
            for _ in range(3):
                path: tuple[int, ...] = ()
                for _ in range(rng.randrange(5)):
                    path += (some(state, path) if rng.random() < 0.9 else rng.randrange(TOKENIZER_SIZE),)
                branches.append(path)
                fresh = opened(wide, grammar, TOKENIZER_SIZE, output_token_ids=committed, max_tokens=99)
                assert torch.equal(state.allowed(path), fresh.allowed(path))
            chosen = some(state, ())
            if chosen == TOKENIZER_SIZE - 1:
                break
            state.commit((chosen,))
            committed += (chosen,)


def test_without_an_end_token_an_answer_ends_where_nothing_can_follow(letters: Grammars) -> None:
    state = opened(letters, choice(*TEXTS), stop_token_ids=frozenset())
    b_alone = [False, True, False, False]
    assert bits(state.allowed((0, 1))) == [[True, True, True, False], b_alone, b_alone]
    assert state.commit((0, 1)) is None
    assert state.commit((1, 0, 0)) == 1
    assert opened(letters, choice("ba"), stop_token_ids=frozenset()).commit((1, 0)) == 2
    # A stop token that is text is a part of the answer, or cannot follow.
    assert bits(opened(letters, choice("b"), stop_token_ids=frozenset({0})).allowed(())) == [b_alone]


def test_rows_of_a_model_that_its_tokenizer_has_no_ids_for_are_never_allowed(letters: Grammars) -> None:
    padded = SIZE + 9
    none = [False] * 9
    state = opened(letters, regex("[ab]+"), padded, stop_token_ids=frozenset({END, padded - 1}))
    assert bits(state.allowed((0,)), padded) == [[True, True, True, False, *none], [True] * SIZE + none]
    assert state.num_following((0, SIZE)) == 1
    without_end = opened(letters, choice("ab"), padded, stop_token_ids=frozenset())
    assert without_end.commit((2, 0)) == 1


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (choice(END_OF_TEXT), END_OF_TEXT),
        (regex(re.escape(f"a{END_OF_TEXT}b")), f"a{END_OF_TEXT}b"),
        (Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"const": END_OF_TEXT})), json.dumps(END_OF_TEXT)),
    ],
)
def test_the_name_of_a_special_token_is_spelled_by_other_tokens(tmp_path: Path, grammar: Grammar, text: str) -> None:
    folder = str(write_tokenizer(tmp_path))
    state = opened(Grammars(folder), grammar, TOKENIZER_SIZE, stop_token_ids=frozenset())
    written: list[int] = []
    while state.commit(written[-1:]) is None:
        (row,) = bits(state.allowed(()), TOKENIZER_SIZE)
        written.append(row.index(True))
        assert state.error == ""
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    assert tokenizer.decode(written) == text
    assert tokenizer.eos_token_id not in written


def test_a_grammar_that_leads_nowhere_is_known_by_its_row(letters: Grammars) -> None:
    state = opened(letters, choice("abc"))
    state.allowed((2, 0))
    assert (state.num_known, state.error) == (1, "NoExtensionBias")
    state.allowed((0,))
    assert state.num_known == 2
    state.commit((0, 1))
    assert bits(state.allowed(())) == [[True] * SIZE]
    assert state.num_known == 0


def test_what_a_draft_meets_is_forgotten_though_it_passes_a_limit(wide: Grammars) -> None:
    ambiguous = Grammar(GrammarKind.LARK, 'start: "x" a | "y"\na: a a | a a a | a a a a | a a a a a | "x" | ')
    x, y = (sorted(pre_tokenizers.ByteLevel.alphabet()).index(letter) for letter in "xy")
    state = opened(wide, ambiguous, TOKENIZER_SIZE)
    state.allowed((x,) * 40)
    assert 0 < state.num_known < 40
    assert "items" in state.error
    assert state.allowed((y,)).tolist() == opened(wide, ambiguous, TOKENIZER_SIZE).allowed((y,)).tolist()
    assert state.num_known == 2
    state.allowed((x,) * 40)
    state.commit((x, x))
    fresh = opened(wide, ambiguous, TOKENIZER_SIZE, output_token_ids=(x, x))
    assert state.allowed((x,)).tolist() == fresh.allowed((x,)).tolist()
    assert state.num_known == 2


def test_what_cannot_be_used_is_refused(letters: Grammars, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^grammar: needs a fast tokenizer"):
        opened(Grammars(str(tmp_path)), choice("a"))
    with pytest.raises(InvalidArgument, match=r"^grammar\.regex: "):
        opened(letters, regex("("))
    for output in ((1, 1), (0, 1, 0)):
        with pytest.raises(InvalidArgument, match="output_token_ids: do not follow the grammar"):
            opened(letters, choice("ab"), output_token_ids=output)
    with pytest.raises(InvalidArgument, match="complete it"):
        opened(letters, choice("ab"), output_token_ids=(2,), stop_token_ids=frozenset())
