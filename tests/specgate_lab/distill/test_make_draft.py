"""A draft is made of a target's own texts; a killed run goes on, and ends as if nobody had killed it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import fingerprint, load_tokenizer
from specgate_lab.distill import training
from specgate_lab.distill.judge import judge
from specgate_lab.distill.lessons import chunk_path, is_whole
from specgate_lab.distill.recipe import Recipe
from specgate_lab.distill.run import WORK, make_draft
from specgate_lab.distill.student import projected
from specgate_lab.distill.texts import write
from tests.support.models import write_llama, write_model, write_tokenizer

PROMPTS = [(5, 6, 7), (8,)]


class Killed(Exception):
    """Stands for a signal."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("target"))
    return write_tokenizer(folder)


def recipe(target: Path, **changes: Any) -> Recipe:
    small = {"layers": 1, "rows": 12, "row_tokens": 40, "write_rows": 4, "steps": 6, "step_tokens": 80}
    return Recipe(str(target), **{**small, **changes})


def quiet(*_: Any) -> None:
    pass


def killed_at(stage: str, done: int) -> Any:
    def on_progress(at: str, count: int, *_: Any) -> None:
        if (at, count) == (stage, done):
            raise Killed

    return on_progress


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_draft_has_the_targets_tokenizer_vocabulary_and_ends(target: Path, tmp_path: Path) -> None:
    report = make_draft(recipe(target), tmp_path / "draft", PROMPTS, "cpu", quiet)
    draft: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    whole: Any = AutoModelForCausalLM.from_pretrained(target)
    assert draft.config.vocab_size == whole.config.vocab_size
    assert draft.generation_config.eos_token_id == whole.generation_config.eos_token_id
    ours, theirs = (load_tokenizer(str(folder)) for folder in (tmp_path / "draft", target))
    assert ours is not None
    assert theirs is not None
    assert fingerprint(ours) == fingerprint(theirs)
    assert 0 <= report["greedy_agreement"] <= 1
    assert report["parameters"] == draft.num_parameters()
    assert not (tmp_path / "draft" / WORK).exists()
    # Once it is whole it is not made again.
    assert make_draft(recipe(target), tmp_path / "draft", PROMPTS, "cpu", killed_at("target writes", 1)) == report


@pytest.mark.parametrize(("stage", "done"), [("target writes", 2), ("draft learns", 5)])
def test_what_was_killed_goes_on_and_ends_as_if_it_had_not_been(
    target: Path, tmp_path: Path, stage: str, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 2)
    make_draft(recipe(target), tmp_path / "whole", PROMPTS, "cpu", quiet)
    with pytest.raises(Killed):
        make_draft(recipe(target), tmp_path / "killed", PROMPTS, "cpu", killed_at(stage, done))
    assert not (tmp_path / "killed" / "config.json").exists()
    seen: list[tuple[str, int]] = []
    make_draft(recipe(target), tmp_path / "killed", PROMPTS, "cpu", lambda *told: seen.append(told[:2]))
    # What was done is not done again: a kill after step 5 goes on from the checkpoint of step 4.
    assert ("draft learns", 4 if stage == "draft learns" else 0) in seen
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "killed")[name], value, rtol=0, atol=0)


def test_a_batch_that_was_being_written_is_written_again(target: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make_draft(recipe(target), tmp_path, PROMPTS, "cpu", killed_at("target writes", 1))
    work = tmp_path / WORK
    chunk_path(work, 1).with_suffix(".unfinished").write_bytes(b"half of it")
    assert is_whole(chunk_path(work, 0))
    assert not is_whole(chunk_path(work, 1))
    make_draft(recipe(target), tmp_path, PROMPTS, "cpu", quiet)


def test_what_the_target_says_of_its_own_text_is_what_was_kept(target: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    lessons = write(model, [(5, 6, 7), (8,), (9, 10)] * 2, 64, seed=1)
    assert lessons.starts.tolist() == [0, 2, 1] * 2
    judged = judge(model, lessons)
    assert judged["greedy_agreement"] == 1.0
    assert judged["bits_per_token"] == pytest.approx(judged["target_bits_per_token"], abs=1e-3)
    # Padding changes nothing: the same text alone, without any.
    row = lessons.ids[1:2, 2:].long()
    own = model(input_ids=row).logits[0, :-1].log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]
    torch.testing.assert_close(own, lessons.log_probs[1, 3:], rtol=1e-4, atol=1e-4)


def test_projected_rows_differ_where_the_target_s_do() -> None:
    rows = torch.randn(100, 2) @ torch.randn(2, 16)
    narrow = projected(rows, 4)
    ours, theirs = torch.cdist(narrow, narrow), torch.cdist(rows, rows)
    # Two directions hold all that there was; the scale is another one.
    torch.testing.assert_close(ours / ours.mean(), theirs / theirs.mean(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "prompts", "words"),
    [
        ({"layers": 0}, PROMPTS, "layers: 0 is outside"),
        ({"hidden_size": 100}, PROMPTS, "hidden_size: 100 is no multiple of 64"),
        ({"rows": 4}, PROMPTS, "rows: 4 is outside"),
        ({}, [(1,) * 21], "prompts: prompt 1 has 21 tokens, and rows have 40"),
        ({}, [(1,), (300_000,)], "prompts: prompt 2 has token 300000; there are"),
        ({"row_tokens": 600, "step_tokens": 600}, PROMPTS, "row_tokens: 600 are more than the target's context of 512"),
    ],
)
def test_bad_input_is_told_in_one_line(
    target: Path, tmp_path: Path, changes: dict[str, Any], prompts: list[tuple[int, ...]], words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_draft(recipe(target, **changes), tmp_path / "draft", prompts, "cpu", quiet)
    assert str(caught.value).startswith(words)
    # The command that is put right can use the folder.
    assert not (tmp_path / "draft").exists()


def test_a_device_that_is_none_is_told(target: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="device: 'tpu' is not one of"):
        make_draft(recipe(target), tmp_path / "draft", PROMPTS, "tpu", quiet)


def test_the_largest_seed_is_a_seed(target: Path, tmp_path: Path) -> None:
    make_draft(recipe(target, seed=2**63 - 1, steps=1), tmp_path, PROMPTS, "cpu", quiet)


def test_a_start_that_was_killed_leaves_nothing_in_the_way(target: Path, tmp_path: Path) -> None:
    (tmp_path / ".recipe.json.unfinished").write_text("half of")
    make_draft(recipe(target, steps=1), tmp_path, PROMPTS, "cpu", quiet)
    (tmp_path / WORK).mkdir()
    make_draft(recipe(target, steps=1), tmp_path, PROMPTS, "cpu", killed_at("target writes", 1))
    assert not (tmp_path / WORK).exists()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "opt"])
def test_a_draft_is_made_for_targets_of_other_kinds(model_type: str, tied: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "target", model_type, tie_word_embeddings=tied)
    make_draft(recipe(folder, steps=1), tmp_path / "draft", PROMPTS, "cpu", quiet)
    draft: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    is_tied = draft.get_input_embeddings().weight is draft.get_output_embeddings().weight
    assert is_tied == tied


def test_a_folder_of_something_else_is_left_alone(target: Path, tmp_path: Path) -> None:
    make_draft(recipe(target), tmp_path, PROMPTS, "cpu", quiet)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(InvalidArgument, match="holds something else"):
        make_draft(recipe(target, seed=1), tmp_path, PROMPTS, "cpu", quiet)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_target_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match="empty"):
        make_draft(recipe(tmp_path / "empty"), tmp_path / "draft", PROMPTS, "cpu", quiet)
    assert not (tmp_path / "draft").exists()


def test_a_recipe_can_be_told_as_json(target: Path) -> None:
    assert json.loads(json.dumps(recipe(target).to_object()))["steps"] == 6
