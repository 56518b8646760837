"""From a target to a draft: its texts, the training, the judgement, the folder."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.devices import pick_device
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import load_tokenizer
from specgate.types import dtype_on
from specgate.weights import weight_files
from specgate_lab.options import make_folder
from specgate_lab.report import ResultsFile, write_json, write_whole
from specgate_lab.train.forms import Form, MeasureCosts, chosen_form, prediction
from specgate_lab.train.gain import Gain, share_of, tokens_of
from specgate_lab.train.lessons import Lessons, chunk_path, is_whole, read_chunks
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.student import Student, head_of, kept_layers, new_draft, round_weights, save
from specgate_lab.train.texts import Beginning, Openings, openings_of, write_texts
from specgate_lab.train.training import Judgement, Trainer, judge

WORK, RECIPE, REPORT, HISTORY = "training", "recipe.json", "training.json", "history.json"
_BLOCK_BYTES, _BLOCKS = 4096, 32
"""Of each file of weights that go into a fingerprint: two trainings of one shape differ in every one of them."""

OnProgress = Callable[[str, int, int, str], None]
"""Called with a stage's name, how much of it is done, how much there is, and a word on it."""
Tell = Callable[[str], None]


def make_draft(
    recipe: Recipe,
    out: Path,
    prompts: Sequence[Beginning],
    device: str,
    measure: MeasureCosts,
    on_progress: OnProgress,
    tell: Tell,
) -> dict[str, Any]:
    """Write a draft for ``recipe.target`` into the folder ``out``, and return what was measured of it.

    Work that is done already is found in ``out/training`` and not done again. The folder has a ``config.json`` only
    once the draft is whole.

    Raises:
        InvalidArgument: the folder holds something else, or cannot be written; a prompt is too long, or has ids that
            the target has not; rows are longer than its context; it has not so many layers; no such device.
        ModelLoadError: the target cannot be loaded.
        UnsupportedArchitecture: its layers or its head are not where they are in other models.
    """
    transformers_logging.disable_progress_bar()
    place, tokenizer = pick_device(device), load_tokenizer(recipe.target)
    openings = openings_of(tokenizer, prompts, recipe.row_tokens)
    config = _loaded(AutoConfig, recipe.target)
    _check(recipe, openings.beginnings, config.get_text_config())
    work = _begin(recipe, out, prompts)
    if (out / REPORT).exists():
        shutil.rmtree(work, ignore_errors=True)
        return dict(json.loads((out / REPORT).read_text(encoding="utf-8")))
    report = ResultsFile(out / REPORT, "out")
    # First, since it also shows that such a draft can be served.
    form = chosen_form(recipe, config, work, measure)
    for line in prediction(form):
        tell(line)
    _write(recipe, openings, work, place, on_progress)
    lessons = read_chunks(work, range(recipe.num_chunks - 1))
    head = head_of(recipe, lessons, config.get_text_config().vocab_size)
    student = Student(new_draft(recipe.target, deepcopy(config), form.layers).to(place), head)
    learned = _train(student, form, recipe, lessons, work, on_progress)
    student.put_back()
    results = {
        "recipe": asdict(recipe),
        "layers": form.layers,
        "parameters": student.draft.num_parameters(),
        "head_share": round(head.share, 4),
        "share_of_forward": round(share_of(form.costs), 4),
        "forward_us": form.costs._asdict(),
        **learned,
    }
    save(student.draft, head, tokenizer, work / "draft")
    _publish(out, report, results)
    shutil.rmtree(work)
    return results


def _write(recipe: Recipe, openings: Openings, work: Path, place: torch.device, on: OnProgress) -> None:
    """Let the target write what it has not written yet. It is gone then: a card has better uses for the room."""
    stage, chunks = "target writes", recipe.num_chunks
    if not all(is_whole(chunk_path(work, number)) for number in range(chunks)):
        write_texts(_load_target(recipe.target, place), openings, recipe, work, lambda n: on(stage, n, chunks, ""))
    on(stage, chunks, chunks, "")


def _train(
    student: Student, form: Form, recipe: Recipe, lessons: Lessons, work: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Train a draft on all texts but the last ones, and return what it says of these, and how it came to it."""
    last = recipe.num_chunks - 1
    judged, trainer = read_chunks(work, range(last, last + 1)), Trainer(student, recipe, work)
    history = _history(work, trainer.step)
    word = ""

    def show(step: int, loss: float) -> None:
        on_progress("draft learns", step, trainer.last_step, f"loss {loss:.2f}{word}")

    on_progress("draft learns", trainer.step, trainer.last_step, "")
    for check in trainer.run(lessons, judged, show):
        told = _told(check.judgement, form.costs)
        word = f", agrees {told['greedy_agreement']:.0%}, {told['gain']:.2f} × the target"
        history.append({"step": check.step, "seconds": round(check.seconds), **told})
        write_json(work / HISTORY, history, "out")
    round_weights(student.draft)
    return {**_told(judge(student, judged), form.costs), "history": history}


def _history(work: Path, step: int) -> list[dict[str, float]]:
    """Return the checks up to a step, of a run that was killed."""
    file = work / HISTORY
    known = json.loads(file.read_text("utf-8")) if file.is_file() else []
    return [check for check in known if check["step"] <= step]


def _told(judgement: Judgement, costs: MeasuredCosts) -> dict[str, float]:
    gain = Gain.of(costs, tokens_of(judgement.agrees))
    return {
        "greedy_agreement": judgement.greedy_agreement,
        "acceptance_at_temperature_1": judgement.acceptance,
        "accepted_per_round": round(tokens_of(judgement.agrees)(gain.gamma) - 1, 3),
        "gamma": gain.gamma,
        "gain": round(gain.ratio, 3),
    }


def _check(recipe: Recipe, beginnings: Sequence[Beginning], shape: Any) -> None:
    """Raise InvalidArgument for what the target could not read; nothing is written by then."""
    if recipe.row_tokens > shape.max_position_embeddings:
        limit = shape.max_position_embeddings
        raise InvalidArgument("row_tokens", f"{recipe.row_tokens} are more than the target's context of {limit}")
    if recipe.layers:
        kept_layers(shape.num_hidden_layers, recipe.layers)
    for number, beginning in enumerate(beginnings, start=1):
        if wrong := [token_id for token_id in beginning if not 0 <= token_id < shape.vocab_size]:
            raise InvalidArgument("prompts", f"prompt {number} has token {wrong[0]}; there are {shape.vocab_size}")


def _begin(recipe: Recipe, out: Path, prompts: Sequence[Beginning]) -> Path:
    """Return the folder of unfinished work, once it is known to be of this recipe."""
    work, file = out / WORK, out / RECIPE
    # The same token ids mean another text under other weights; two prompts files may have one name.
    mark = {**asdict(recipe), "fingerprint": _fingerprint(recipe.target), "prompts": [*map(list, prompts)]}
    text = json.dumps(mark, indent=2)
    if file.is_file():
        is_ours = file.read_text(encoding="utf-8") == text
    else:
        is_ours = not out.is_dir() or all(one.name.startswith(f".{RECIPE}") for one in out.iterdir())
    if not is_ours:
        raise InvalidArgument("out", f"{out} holds something else; it is not overwritten")
    make_folder("out", out)
    write_whole(file, text, "out")
    make_folder("out", work)
    return work


def _fingerprint(name: str) -> str:
    """Return a digest of a model's weights: of the headers of its files and of samples of what is in them."""
    digest = hashlib.sha256()
    for path in weight_files(name):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size)))
            for block in range(_BLOCKS):
                file.seek(8 + header + max(size - 8 - header - _BLOCK_BYTES, 0) * block // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def _load_target(name: str, device: torch.device) -> Any:
    # Texts need no float32: a CPU with bfloat16 of its own writes them twice as fast with it.
    has_bfloat16 = any(torch.cpu.get_capabilities().get(one) for one in ("amx_bf16", "avx512_bf16"))
    dtype = torch.bfloat16 if device.type == "cpu" and has_bfloat16 else getattr(torch, dtype_on("auto", device.type))
    model = _loaded(AutoModelForCausalLM, name, dtype=dtype, use_safetensors=True)
    return model.to(device).eval().requires_grad_(False)


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    """Return what a class of transformers loads. Raises ModelLoadError."""
    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    # What transformers raises over bad files is not of one kind.
    except Exception as error:
        raise ModelLoadError.of(error, name) from error


def _publish(out: Path, report: ResultsFile, results: Mapping[str, Any]) -> None:
    """Move a whole draft to where it belongs, what makes it one last; then the report."""
    for file in sorted((out / WORK / "draft").iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(out / file.name)
    report.write(results)
