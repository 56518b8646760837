"""Layer skip in the decode loop: the target's own text, run-ahead included, in every mode."""

import json
from pathlib import Path

import pytest
import torch

from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.types import SamplingParams, Verification
from tests.support.models import load_float32, run_all, write_llama
from tests.support.sessions import GREEDY, Pair, Plan, decode, make_spec

KV_TOKENS, PAGE_SIZE = 2048, 64


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("target")
    write_llama(folder, vocab_size=16, seed=1)
    file: Path = folder / "skip.json"
    file.write_text(json.dumps({"num_layers": 2, "attention": [1], "mlp": [1]}))
    cut = load(str(folder), torch.device("cpu"), torch.float32, lambda *_: None, str(file))
    target, draft = (prepare(one, KV_TOKENS, PAGE_SIZE, lambda *_: None) for one in (load_float32(folder), cut))
    return Pair(target, draft)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0)], ids=["greedy", "shared noise"])
def test_the_text_is_the_targets_with_and_without_run_ahead(pair: Pair, sampling: SamplingParams) -> None:
    spec = make_spec(sampling=sampling, seed=5, max_tokens=60)
    alone, asked, ahead = run_all([decode(pair, spec, plan) for plan in (Plan(), Plan(3), Plan(3, ahead=4))])
    assert asked.token_ids == ahead.token_ids == alone.token_ids
    assert asked.num_accepted > 0
    assert any(proposal.from_run_ahead for proposal in ahead.proposals)
    assert not any(proposal.from_run_ahead for proposal in asked.proposals)


def test_rejection_has_a_distribution_for_each_token(pair: Pair) -> None:
    spec = make_spec(sampling=SamplingParams(), verification=Verification.REJECTION, max_tokens=60)
    (generation,) = run_all([decode(pair, spec, Plan(3, ahead=4))])
    assert generation.num_accepted > 0
    assert all(len(one.draft_probs) == len(one) for one in generation.proposals)
