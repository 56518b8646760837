"""What a required call may be, token by token, where its marks are special tokens, other tokens, or plain text."""

import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.http.tool_request import Function
from orchestrator.decode.text import TextTokenizer
from specgate.grammar import usable
from specgate.runtime.grammar import Grammars, GrammarState
from specgate.types import Grammar, GrammarKind
from tests.support.sessions import make_spec
from tests.support.tool_calls import FORMATS, NAMES, TOOLS, byte_tokenizer, read, valid

FUNCTIONS = [Function.model_validate(tool["function"]) for tool in TOOLS]
SCHEMAS = {function.name: function.schema_of_arguments for function in FUNCTIONS}
END_TOKEN_ID = 0
KINDS = {"plain": None, "added": False, "special": True}


def walk(state: GrammarState, vocab_size: int, rng: random.Random) -> list[int]:
    """Choose among allowed tokens until the end is chosen."""
    chosen: list[int] = []
    while True:
        bits = int.from_bytes(bytes(state.allowed(())[0].tolist()), "little")
        allowed = [token_id for token_id in range(vocab_size) if bits >> token_id & 1]
        assert state.num_known == 1, state.error
        # A space or a letter more is always there to choose; the end is not.
        token_id = END_TOKEN_ID if END_TOKEN_ID in allowed and rng.random() < 0.4 else rng.choice(allowed)
        if token_id == END_TOKEN_ID:
            return chosen
        state.commit([token_id])
        chosen.append(token_id)
        assert len(chosen) < 3000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_is_allowed_is_a_valid_call(name: str, kind: str, tmp_path: Path) -> None:
    format_, special = FORMATS[name], KINDS[kind]
    byte_tokenizer(() if special is None else tuple(format_.markers), special=bool(special)).save_pretrained(tmp_path)
    tokenizer = TextTokenizer.load(str(tmp_path))
    assert tokenizer is not None
    ids = tokenizer.added_token_ids(format_.markers)
    assert len(ids) == (0 if special is None else len(format_.markers))
    grammars, rng = Grammars(str(tmp_path)), random.Random(5)
    numbers = set()
    for parallel in [True] * 9 + [False]:
        grammar = usable(Grammar(GrammarKind.LARK, format_.spelling.grammar(SCHEMAS, ids, parallel=parallel)))
        spec: Any = make_spec(grammar=grammar, stop_token_ids=frozenset({END_TOKEN_ID}), max_tokens=4000)
        chosen = walk(grammars.state(spec, tokenizer.vocab_size), tokenizer.vocab_size, rng)
        text = tokenizer.incremental(shown_token_ids=ids.values())
        written = text.step(chosen) + text.flush()
        required, free = format_.required(), format_.free(NAMES, parallel=True)
        told = read([*required.push(written), *required.finish()])
        assert told == read([*free.push(written), *free.finish()])
        assert not told.content
        assert all(valid(*call) for call in told.calls)
        assert len(told.calls) == 1 or (parallel and name != "llama3")
        numbers.add(len(told.calls))
    assert name == "llama3" or len(numbers) > 1
