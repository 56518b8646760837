"""Under a grammar: the text is what the target alone says under it, and it is one that the grammar has."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from specgate.errors import InvalidArgument
from specgate.runtime.grammar import Grammars
from specgate.types import FinishReason, Grammar, GrammarKind, Proposal, SamplingParams, SessionSpec, VerifyRequest
from tests.support.grammars import END, choice, letter_grammars, regex
from tests.support.models import TOKENIZER_SIZE, KnownModel, Mix, run_all, run_task, write_tokenizer
from tests.support.sessions import GREEDY, Pair, Plan, decode, make_spec, open_session
from verifier_svc.verifier import VerifySession

SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": [1, 22, true]}},'
    ' "required": ["a", "b"], "additionalProperties": false, "x-guidance": {"whitespace_pattern": ""}}',
)
GRAMMARS = {"regex": regex("(the|in|on) [a-z]{2,5}( x)?"), "choice": choice("here", "there", "the"), "schema": SCHEMA}
PAIR = Pair(KnownModel(TOKENIZER_SIZE, 31), draft=KnownModel(TOKENIZER_SIZE, 32, mix=Mix(31, 0.8)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def fits(name: str, text: str) -> bool:
    if name == "schema":
        answer = json.loads(text)
        return answer.keys() == {"a", "b"} and len(answer["a"]) <= 4 and answer["b"] in (1, 22, True)
    return bool(re.fullmatch("here|there|the" if name == "choice" else GRAMMARS[name].text, text))


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(), SamplingParams(temperature=0.8, top_k=5, top_p=0.9)])
@pytest.mark.parametrize("has_end", [True, False])
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_text_is_the_one_that_the_target_alone_says(
    folder: Path, name: str, has_end: bool, sampling: SamplingParams
) -> None:
    stop = frozenset({TOKENIZER_SIZE - 1} if has_end else ())
    base = make_spec(grammar=GRAMMARS[name], sampling=sampling, stop_token_ids=stop, max_tokens=45)
    specs = [replace(base, seed=seed) for seed in range(1 if sampling.greedy else 6)]
    grammars, tokenizer = Grammars(str(folder)), Tokenizer.from_file(str(folder / "tokenizer.json"))

    def texts(plan: Plan) -> list[Any]:
        return run_all([decode(PAIR, spec, plan, grammars=grammars) for spec in specs])

    alone = texts(Plan())
    for plan in (Plan(4), Plan(3, ahead=3), Plan(3, solo_below=0.5, max_solo_tokens=2), Plan(3, stop_below=0.5)):
        assert [one.token_ids for one in texts(plan)] == [one.token_ids for one in alone]
    for one in alone:
        assert one.finish_reason is FinishReason.STOP
        assert (one.token_ids[-1] in stop) == has_end
        assert fits(name, tokenizer.decode(one.token_ids, skip_special_tokens=True))


def test_drafts_under_a_grammar_are_accepted(folder: Path) -> None:
    specs = [make_spec(grammar=SCHEMA, sampling=SamplingParams(), seed=seed, max_tokens=45) for seed in range(8)]
    grammars = Grammars(str(folder))
    runs = run_all([decode(PAIR, spec, Plan(4, ahead=2), grammars=grammars) for spec in specs])
    assert sum(run.num_accepted for run in runs) > sum(len(run.token_ids) for run in runs) / 3
    assert any(proposal.from_run_ahead for run in runs for proposal in run.proposals)


def test_another_service_goes_on_where_the_first_was_lost(folder: Path) -> None:
    for seed in range(4):
        spec = make_spec(grammar=SCHEMA, sampling=SamplingParams(), seed=seed, max_tokens=45)
        (whole,) = run_all([decode(PAIR, spec, Plan(3), grammars=Grammars(str(folder)))])
        for length in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
            resumed = replace(spec, output_token_ids=tuple(whole.token_ids[:length]))
            (rest,) = run_all([decode(PAIR, resumed, Plan(3), grammars=Grammars(str(folder)))])
            assert rest.token_ids == whole.token_ids[length:]


# What a verdict says.

LETTERS = KnownModel(4, 21)


def judged(folder: Path, spec: SessionSpec, draft: tuple[int, ...]) -> Any:
    session = open_session(VerifySession, spec, LETTERS, letter_grammars(folder))
    verdicts: list[Any] = []
    position = len(spec.committed_token_ids)
    run_task(LETTERS, session.verify(VerifyRequest(0, position, Proposal(draft)), verdicts.append))
    return verdicts[0]


def test_probabilities_are_those_among_the_allowed_tokens(tmp_path: Path) -> None:
    spec = make_spec(grammar=choice("ab", "ba"), stop_token_ids=frozenset({END}), logprobs=4)
    verdict = judged(tmp_path, spec, (1, 0))
    own = verdict.logprobs[0]
    logits = LETTERS.logits(spec.prompt_token_ids)
    among = logits[:3].log_softmax(0)
    assert {token_id for token_id, _ in own.top} == {0, 1, 2}
    assert dict(own.top) == pytest.approx({i: float(among[i]) for i in range(3)}, abs=1e-5)
    first = verdict.token_id if verdict.num_accepted == 0 else 1
    assert own.logprob == pytest.approx(float(among[first]), abs=1e-5)
    confidences = [*verdict.accepted_confidences, verdict.confidence]
    assert confidences[0] == pytest.approx(math.exp(own.logprob), rel=1e-5)


def test_an_answer_ends_inside_what_was_accepted_where_the_grammar_does(tmp_path: Path) -> None:
    verdict = judged(tmp_path, make_spec(grammar=choice("ab")), (2, 1, 1))
    assert (verdict.num_accepted, verdict.token_id, verdict.finish_reason) == (1, None, FinishReason.STOP)


def test_a_grammar_that_leads_nowhere_ends_the_session_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^grammar: leads nowhere after 0 tokens: "):
        judged(tmp_path, make_spec(grammar=choice("c")), ())
    verdict = judged(tmp_path, make_spec(grammar=regex("a(bc|b)")), (0,))
    assert verdict.num_emitted > 0
