"""A draft's head that is cut to some tokens: the same logits for these, no other is drafted, by each way to draft."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.errors import InvalidArgument, SpecgateError
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import LoadedModel, load
from specgate.runtime.short_head import FILE, NEVER
from specgate.types import SamplingParams
from tests.support.drafting import drafting
from tests.support.models import load_float32, quiet, write_llama
from tests.support.sessions import VOCAB_SIZE

TOKENS = [*range(3, VOCAB_SIZE, 3)]
LAWS = {
    "greedy": SamplingParams(temperature=0),
    "noise": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=0.5),
}


def write_draft(folder: Path, token_ids: Any, **others: Any) -> Path:
    write_llama(folder, VOCAB_SIZE, seed=1, head_dim=16, **others)
    (folder / FILE).write_text(json.dumps({"token_ids": token_ids}))
    return folder


def load_draft(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load(str(folder), torch.device("cpu"), dtype, quiet, drafts=True)


def runner_of(folder: Path, *, packs: bool) -> ModelRunner:
    runner = prepare(load_draft(folder), 4096, 64, quiet, packs=packs)
    runner.resize(4096)
    return runner


@pytest.mark.parametrize("others", [{}, {"tie_word_embeddings": True}], ids=["own head", "tied"])
def test_its_logits_are_the_whole_heads(tmp_path: Path, others: dict[str, Any]) -> None:
    folder, ids = write_draft(tmp_path / "draft", TOKENS[::-1], **others), torch.tensor([[5, 1, 8]])
    cut, whole = load_draft(folder).model(ids).logits, load_float32(folder).model(ids).logits
    torch.testing.assert_close(cut[..., TOKENS], whole[..., TOKENS])
    missing = [token_id for token_id in range(VOCAB_SIZE) if token_id not in TOKENS]
    assert bool((cut[..., missing] == NEVER).all())


@pytest.mark.parametrize("law", LAWS)
async def test_one_call_drafts_as_forwards_in_a_row(tmp_path: Path, law: str) -> None:
    folder = write_draft(tmp_path / "draft", TOKENS)
    texts = []
    for packs in (True, False):
        async with drafting(runner_of(folder, packs=packs)) as one:
            texts.append([proposal.draft_token_ids for proposal in await one.text(sampling=LAWS[law])])
    assert texts[0] == texts[1]
    assert {token_id for draft in texts[0] for token_id in draft} <= {*TOKENS}


@pytest.mark.parametrize("content", [[], [1, 2.5], [-1], [VOCAB_SIZE], 7, ["a"]], ids=str)
def test_a_list_of_no_tokens_is_refused_by_name(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidArgument, match=FILE):
        load_draft(write_draft(tmp_path / "draft", content))


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "draft", TOKENS)
    (folder / FILE).write_text("[")
    with pytest.raises(SpecgateError, match=FILE):
        load_draft(folder)
