"""A draft is made of a target's own texts; a killed run resumes, and ends as if nobody had killed it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import fingerprint, load_tokenizer
from specgate.types import ForwardCost
from specgate_lab.train import training
from specgate_lab.train.forms import best_layers, with_layers
from specgate_lab.train.lessons import TOP, Lessons, read_chunks
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.run import WORK, make_draft
from specgate_lab.train.student import WHOLE, Student, head_of, new_draft, round_weights, save
from specgate_lab.train.texts import Openings, openings_of, write
from specgate_lab.train.training import judge
from tests.support.models import write_llama, write_model, write_tokenizer

PROMPTS = [(5, 6, 7), (8,)]
FIRST_SEED, LAST_SEED = 0, 2**63 - 1


class Killed(Exception):
    """Stands for a signal."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(write_llama(tmp_path_factory.mktemp("target")))


def recipe(target: Path, **changes: Any) -> Recipe:
    small: dict[str, Any] = {
        "head_tokens": 16,
        "rows": 12,
        "row_tokens": 64,
        "write_rows": 4,
        "steps": 6,
        "step_tokens": 80,
    }
    return Recipe(str(target), **{**small, **changes})


def quiet(*_: Any) -> None:
    pass


def measure(target: str, drafts: Mapping[int, Path]) -> dict[int, MeasuredCosts]:
    """Return costs on which a layer takes a twentieth of the target, and the head as much."""
    assert all((folder / "config.json").exists() for folder in drafts.values())
    widths = [ForwardCost(1, 2000), ForwardCost(9, 3000)]
    return {n: MeasuredCosts(widths, [ForwardCost(1, 100 * (n + 1)), ForwardCost(9, 900)]) for n in drafts}


def made(
    recipe: Recipe,
    out: Path,
    prompts: Any = PROMPTS,
    device: str = "cpu",
    on_progress: Any = quiet,
    costs: Any = measure,
) -> Any:
    return make_draft(recipe, out, prompts, device, costs, on_progress, quiet)


def texts_of(model: Any, beginnings: list[tuple[int, ...]]) -> Lessons:
    """Return texts without leads, of 64 tokens."""
    return write(model, Openings(beginnings), torch.zeros(len(beginnings), dtype=torch.bool), 64, seed=1)


def not_again(*_: Any) -> None:
    raise AssertionError


def killed_at(stage: str, done: int) -> Any:
    def on_progress(at: str, count: int, *_: Any) -> None:
        if (at, count) == (stage, done):
            raise Killed

    return on_progress


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a draft that nobody killed."""
    folder = tmp_path_factory.mktemp("made") / "draft"
    made(recipe(target), folder)
    return folder


def test_a_draft_has_the_targets_tokenizer_vocabulary_and_ends_and_is_made_once(target: Path, whole: Path) -> None:
    draft: Any = AutoModelForCausalLM.from_pretrained(whole)
    model: Any = AutoModelForCausalLM.from_pretrained(target)
    assert draft.config.vocab_size == model.config.vocab_size
    assert draft.generation_config.eos_token_id == model.generation_config.eos_token_id
    ours, theirs = (load_tokenizer(str(folder)) for folder in (whole, target))
    assert ours is not None
    assert theirs is not None
    assert fingerprint(ours) == fingerprint(theirs)
    # A start that was killed while the last files were removed.
    (whole / WORK).mkdir()
    report = made(recipe(target), whole, on_progress=killed_at("target writes", 1))
    assert not (whole / WORK).exists()
    assert 0 <= report["greedy_agreement"] <= 1
    assert report["parameters"] == draft.num_parameters()


@pytest.mark.parametrize(("stage", "done"), [("target writes", 2), ("draft learns", 5)])
def test_a_killed_run_resumes_and_ends_as_if_it_had_not_been_killed(
    target: Path, whole: Path, tmp_path: Path, stage: str, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECK_STEPS", 2)
    # Files that were being written when it was killed.
    (tmp_path / ".recipe.json.unfinished").write_text("half of")
    with pytest.raises(Killed):
        made(recipe(target), tmp_path, on_progress=killed_at(stage, done))
    (tmp_path / WORK / ".texts-00001.safetensors.unfinished").write_bytes(b"half of")
    assert not (tmp_path / "config.json").exists()
    seen: list[tuple[str, int]] = []
    report = made(recipe(target), tmp_path, on_progress=lambda *told: seen.append(told[:2]), costs=not_again)
    # After a kill at step 5 the run resumes from the checkpoint of step 4.
    assert ("draft learns", 4 if stage == "draft learns" else 0) in seen
    assert [check["step"] for check in report["history"]] == [2, 4, 6]
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(tmp_path)[name], value, rtol=0, atol=0)


def test_a_draft_that_agrees_no_more_often_learns_no_longer(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECK_STEPS", 2)
    monkeypatch.setattr(training, "LEAST_RISE", 1.0)
    report = made(recipe(target, steps=40), tmp_path)
    # Three checks without a rise after the first; then the rates fall for as long.
    assert report["history"][-1]["step"] == 16


@pytest.mark.parametrize(
    ("kind", "changes"), [("llama", {}), ("gemma3_text", {"sliding_window": 16, "final_logit_softcapping": 5.0})]
)
def test_what_the_target_says_of_its_own_text_is_what_was_kept(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_model(tmp_path, kind, **changes)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lessons = texts_of(model, [(5, 6, 7), (8,), (9, 10)] * 2)
    assert lessons.starts.tolist() == [0, 2, 1] * 2
    judged = judge(Student(model), lessons)
    assert judged.greedy_agreement == 1.0
    assert {len(agrees) for agrees in judged.agrees} == {61}
    # What lies outside of the choices that are kept is all that it does not agree on.
    kept = lessons.top_log_probs[lessons.judged].float().exp().sum(-1)
    assert judged.acceptance == pytest.approx(float(kept.mean()), abs=0.02)
    # Padding changes nothing: the same text alone, without any.
    own = model(input_ids=lessons.ids[1:2, 2:].long()).logits[0, :-1].log_softmax(-1).topk(TOP).values
    torch.testing.assert_close(own, lessons.top_log_probs[1, 3:].float(), rtol=1e-3, atol=1e-4)


def test_a_draft_learns_from_answers_from_their_first_token_to_their_end(target: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    plain = texts_of(model, [(5, 6, 7)] * 64)
    # Whatever token is frequent ends a question here, and another one an answer.
    ends_question, ends_answer = plain.ids[:, 3:].flatten().bincount().topk(2).indices.tolist()
    model.generation_config.eos_token_id = [ends_answer]
    leads = torch.ones(64, dtype=torch.bool)
    chats = write(model, Openings([(5, 6, 7)] * 64, (ends_question, 40, 41)), leads, 64, seed=1)
    asked = set()
    for ids, written, ends in zip(chats.ids.tolist(), chats.written.tolist(), chats.ends.tolist(), strict=True):
        question, closing, answer = ids[3 : written - 3], ids[written - 3 : written], ids[written:ends]
        asked.add(tuple(question))
        assert ends_question not in question
        assert closing == [ends_question, 40, 41]
        assert ends_answer not in answer[:-1]
        assert ends == 64 or answer[-1] == ends_answer
    assert len(asked) > 32
    assert chats.ends.min() < 64
    assert torch.equal(chats.judged.sum(-1), chats.ends - chats.written)


def test_a_chat_begins_with_and_without_what_its_template_says_first(target: Path) -> None:
    tokenizer: Any = load_tokenizer(str(target))
    tokenizer.chat_template = (
        "{% if messages[0].role == 'user' %}system: help.\n{% endif %}"
        "{% for one in messages %}{{ one.role }}: {{ one.content }};\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    openings = openings_of(tokenizer, [], 256)
    texts = [tokenizer.decode(one) for one in (*openings.beginnings, openings.closing)]
    assert texts == ["system: help.\nuser: ", "user: ", ";\nassistant: "]
    # Where nothing stands before a question, the text begins as any other does.
    tokenizer.chat_template = "{% for one in messages %}{{ one.content }}\n{% endfor %}"
    assert all(openings_of(tokenizer, [], 256).beginnings)


def test_a_head_that_is_cut_teaches_and_judges_its_own_tokens_alone(target: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    lessons = texts_of(model, [(5, 6, 7)] * 8)
    whole, head = (
        judge(Student(model), lessons),
        head_of(recipe(target, head_tokens=16), lessons, model.config.vocab_size),
    )
    student = Student(model, head)
    token_ids = head.token_ids or []
    places, probs = student.choices(lessons)
    ids = lessons.top_ids[lessons.judged]
    assert set(ids[probs > 0].tolist()) <= set(token_ids)
    total = lessons.top_log_probs[lessons.judged].float().exp().sum()
    assert float(probs.sum()) == pytest.approx(head.share * float(total), rel=0.001)
    assert torch.equal(torch.tensor(token_ids)[places][probs > 0], ids[probs > 0].long())
    # The likeliest token of a head that is cut is never one that it has not.
    assert judge(student, lessons).greedy_agreement < whole.greedy_agreement
    student.put_back()
    assert judge(Student(model), lessons) == whole


def test_texts_that_judge_begin_as_no_other_does(target: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        made(recipe(target), tmp_path, on_progress=killed_at("target writes", 3))
    batches = [read_chunks(tmp_path / WORK, range(number, number + 1)) for number in range(3)]
    expected = [PROMPTS[1], PROMPTS[1], PROMPTS[0]]
    for one, prompt in zip(batches, expected, strict=True):
        assert {tuple(row[: len(prompt)].tolist()) for row in one.ids} == {prompt}


def test_a_draft_has_as_many_layers_as_take_an_eighth_of_the_target() -> None:
    costs = {n: MeasuredCosts([ForwardCost(1, 3000)], [ForwardCost(1, 75 * (n + 1))]) for n in (1, 4)}
    assert [best_layers(costs, depth) for depth in (1, 3, 30)] == [1, 2, 4]
    assert with_layers(costs, 3).draft == [ForwardCost(1, 300)]


@pytest.mark.parametrize(
    ("changes", "prompts", "device", "words"),
    [
        ({"layers": 0}, PROMPTS, "cpu", "layers: 0 is outside"),
        ({"layers": 9}, PROMPTS, "cpu", "layers: 9 are more than the target's"),
        ({"rows": 4}, PROMPTS, "cpu", "rows: 4 is outside"),
        ({}, [(1,) * 33], "cpu", "prompts: prompt 1 has 33 tokens, and rows have 64"),
        ({}, [(1,), (300_000,)], "cpu", "prompts: prompt 2 has token 300000; there are"),
        ({"row_tokens": 600, "step_tokens": 600}, PROMPTS, "cpu", "row_tokens: 600 are more than the target's context"),
        ({}, PROMPTS, "tpu", "device: 'tpu' is not one of"),
    ],
)
def test_bad_input_is_named_before_anything_is_written(
    target: Path, tmp_path: Path, changes: dict[str, Any], prompts: list[tuple[int, ...]], device: str, words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        made(recipe(target, **changes), tmp_path / "draft", prompts, device)
    assert str(caught.value).startswith(words)
    # The corrected command can use the folder.
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(
    ("model_type", "tied", "seed"),
    [
        ("gemma3_text", True, FIRST_SEED),
        ("gpt2", False, LAST_SEED),
        ("opt", True, FIRST_SEED),
        ("olmo", False, FIRST_SEED),
    ],
)
def test_a_draft_is_made_for_targets_of_other_kinds(model_type: str, tied: bool, seed: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "target", model_type, tie_word_embeddings=tied)
    made(recipe(folder, steps=1, seed=seed), tmp_path / "draft")
    draft: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert (draft.get_input_embeddings().weight is draft.get_output_embeddings().weight) == tied


def test_a_draft_that_is_loaded_is_the_one_that_was_saved(tmp_path: Path) -> None:
    """(Each layer of SmolLM3 rotates or not, by its number.)"""
    folder = write_model(tmp_path / "target", "smollm3", num_hidden_layers=4, no_rope_layers=[1, 0, 0, 1])
    draft = new_draft(str(folder), AutoConfig.from_pretrained(folder), 2)
    round_weights(draft)
    ids = torch.arange(5, 25)[None]
    learned = draft(ids, use_cache=False).logits
    save(draft, WHOLE, None, tmp_path / "draft")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    torch.testing.assert_close(loaded(ids).logits, learned)
    assert loaded.config.no_rope_layers == [1, 1]


def test_a_folder_of_something_else_is_left_alone(target: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for folder, other in ((whole, recipe(target, seed=1)), (tmp_path, recipe(target))):
        before = {file: file.read_bytes() for file in folder.iterdir()}
        with pytest.raises(InvalidArgument, match="holds something else"):
            made(other, folder)
        assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_texts_of_other_weights_are_something_else(tmp_path: Path) -> None:
    folder, draft = write_llama(tmp_path / "target"), tmp_path / "draft"
    with pytest.raises(Killed):
        made(recipe(folder), draft, on_progress=killed_at("target writes", 1))
    write_llama(folder, seed=1)
    with pytest.raises(InvalidArgument, match="holds something else"):
        made(recipe(folder), draft)


def test_a_target_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match="empty"):
        made(recipe(tmp_path / "empty"), tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
