"""Sessions whose drafts and guesses our kernels make, in Triton's interpreter: the texts of forwards in a row."""

import asyncio
from pathlib import Path

import pytest
import torch

from specgate.runtime.scheduler import Limits
from tests.specgate.runtime.cuda.decoder.drafts import GREEDY, LAUNCHES, NOISE, Draws
from tests.support.drafting import runner_with
from tests.support.engines import decode_on, served
from tests.support.models import Mix, make_runner, write_llama
from tests.support.sessions import VOCAB_SIZE, Generation, Plan, make_spec

pytestmark = [pytest.mark.triton, pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted")]
SIZES = {"layers": 1, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24}


@pytest.fixture(scope="module")
def draws(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    mix = Mix(seed=2, share=0.97)
    return Draws.of(write_llama(tmp_path_factory.mktemp("draft"), VOCAB_SIZE, seed=1, mix=mix, **SIZES))


@pytest.mark.parametrize("params", [GREEDY, NOISE], ids=["greedy", "noise"])
async def test_proposals_and_text_are_the_same(draws: Draws, params: object, tmp_path: Path) -> None:
    target = make_runner(write_llama(tmp_path, VOCAB_SIZE, seed=2, **SIZES))
    spec, found = make_spec(sampling=params, max_tokens=12), []
    for by_kernels in (False, True):
        draws.runner.drafter = None
        if by_kernels:
            draws.by_kernels()
        async with served(target, draws.runner, Limits(), chains=True) as pair:
            found.append(await decode_on(pair, spec, Plan(gamma=2, ahead=2), asyncio.Barrier(1)))
    assert draws.runner.drafter
    assert _told(found[0]) == _told(found[1])
    assert found[1].num_accepted > 2
    assert any(proposal.from_run_ahead for proposal in found[1].proposals)


def _told(generation: Generation) -> object:
    return generation.token_ids, [proposal.draft_token_ids for proposal in generation.proposals]


def test_they_pass_the_check_of_a_load(tmp_path: Path) -> None:
    assert runner_with(write_llama(tmp_path, VOCAB_SIZE, **SIZES), LAUNCHES, page_size=8).drafter
