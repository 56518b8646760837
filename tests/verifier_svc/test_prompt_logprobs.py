"""Log-probabilities of prompts are the target's, whatever is cached, and of answers whatever was drafted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.types import ALWAYS_SOLO, SamplingParams, SessionSpec, TokenLogprobs, Verification
from tests.support.models import eager_logits, make_runner, run_all, run_task, write_llama
from tests.support.sessions import Pair, Plan, decode, open_session
from verifier_svc.verifier import PROMPT_ROWS, VerifySession

VOCAB_SIZE = 64
PROMPT = tuple((7 * i * i + 3 * i) % VOCAB_SIZE for i in range(2 * PROMPT_ROWS + 9))
NUM_TOP = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    paths = [
        write_llama(folder / name, vocab_size=VOCAB_SIZE, seed=seed) for name, seed in (("target", 1), ("draft", 2))
    ]
    return Pair(*(make_runner(path, kv_tokens=64 * 256, page_size=256) for path in paths))


def make_spec(prompt: tuple[int, ...], **fields: Any) -> SessionSpec:
    settings = {"sampling": SamplingParams(), "verification": Verification.SHARED_NOISE, "max_tokens": 24, **fields}
    return SessionSpec(prompt_token_ids=prompt, seed=3, **settings)


def told_by(pair: Pair, prompt: tuple[int, ...]) -> list[TokenLogprobs]:
    """Return what a session tells of its prompt."""
    session = open_session(VerifySession, make_spec(prompt, prompt_logprobs=NUM_TOP), pair.target)
    told: list[TokenLogprobs] = []
    run_task(pair.target, session.prefill(told.extend))
    session.free()
    return told


def expected_of(folder: Path, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Return HuggingFace's log-probabilities behind each token."""
    return eager_logits(folder / "target", [list(token_ids)])[0].float().log_softmax(-1)


def check(told: list[TokenLogprobs], raw: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    assert len(told) == len(token_ids) == len(raw)
    assert [one.logprob for one in told] == pytest.approx(raw[range(len(raw)), list(token_ids)].tolist(), abs=1e-4)
    for one, row in zip(told, raw, strict=True):
        assert [logprob for _, logprob in one.top] == pytest.approx(row.topk(len(one.top)).values.tolist(), abs=1e-4)
        assert [float(row[token_id]) for token_id, _ in one.top] == pytest.approx([v for _, v in one.top], abs=1e-4)


def test_of_a_prompt_they_are_those_of_transformers_whatever_is_cached(pair: Pair, folder: Path) -> None:
    # The second session finds all of it cached, the third a part.
    for prompt in (PROMPT, PROMPT, (*PROMPT[:100], *PROMPT[3:20])):
        raw = expected_of(folder, prompt)
        check(told_by(pair, prompt), raw[:-1], prompt[1:])
    assert told_by(pair, PROMPT[:1]) == []


@pytest.mark.parametrize("verification", Verification)
def test_of_an_answer_they_are_the_targets_however_it_was_drafted(
    pair: Pair, folder: Path, verification: Verification
) -> None:
    spec = make_spec(PROMPT[:20], logprobs=NUM_TOP, verification=verification)
    plans = (Plan(solo_below=ALWAYS_SOLO), Plan(4), Plan(6, solo_below=0.05, max_solo_tokens=2), Plan(3, ahead=2))
    generations = run_all([decode(pair, spec, plan) for plan in plans])
    assert max(generation.num_accepted for generation in generations) > 2
    for generation in generations:
        text = tuple(generation.token_ids)
        told = [one for verdicts in generation.verdicts for verdict in verdicts for one in verdict.logprobs]
        raw = expected_of(folder, (*PROMPT[:20], *text))[19:-1]
        check(told, raw, text)
