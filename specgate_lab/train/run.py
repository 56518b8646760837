"""From a target to a draft: its texts, the training, the judgement, the folder."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.devices import pick_device
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.runtime import short_head
from specgate.tokenizer import load_tokenizer
from specgate.types import ForwardCost, dtype_on
from specgate.weights import weight_files
from specgate_lab.options import make_folder
from specgate_lab.report import write_json, write_whole
from specgate_lab.train.forms import TRIED_LAYERS, MeasureCosts, best_layers, prediction, with_layers
from specgate_lab.train.gain import Gain, share_of, tokens_of
from specgate_lab.train.lessons import Lessons, chunk_path, is_whole, read_chunks
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.student import Student, frequent_tokens, kept_layers, new_draft
from specgate_lab.train.texts import Beginning, beginnings_of, write_texts
from specgate_lab.train.training import Judgement, Trainer, judge

WORK, RECIPE, REPORT = "training", "recipe.json", "training.json"
FORM, HISTORY = "form.json", "history.json"
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
    place, tokenizer = pick_device(device), load_tokenizer(recipe.target)
    beginnings = beginnings_of(tokenizer, prompts, recipe.row_tokens)
    config = _loaded(AutoConfig, recipe.target)
    _check(recipe, beginnings, config.get_text_config())
    work = _begin(recipe, out, prompts)
    if (out / REPORT).exists():
        shutil.rmtree(work, ignore_errors=True)
        return dict(json.loads((out / REPORT).read_text(encoding="utf-8")))
    # First, since it also shows that such a draft can be served.
    form = _form(recipe, config, work, measure)
    for line in prediction(form.layers, form.costs):
        tell(line)
    _write(recipe, beginnings, work, place, on_progress)
    lessons = read_chunks(work, range(recipe.num_chunks - 1))
    head = _head(recipe, lessons, config)
    student = Student(new_draft(recipe.target, deepcopy(config), form.layers).to(place), head.token_ids)
    learned = _train(student, form, recipe, lessons, work, on_progress)
    student.put_back()
    report = {
        "recipe": asdict(recipe),
        "layers": form.layers,
        "parameters": student.draft.num_parameters(),
        "head_share": round(head.share, 4),
        "share_of_forward": round(share_of(form.costs), 4),
        **learned,
    }
    _save(student.draft, head, tokenizer, out / WORK / "draft")
    _publish(out, report)
    shutil.rmtree(work)
    return report


class _Head(NamedTuple):
    """The tokens that a draft can propose, None being all, and their share of the target's probability."""

    token_ids: list[int] | None
    share: float


class _Form(NamedTuple):
    layers: int
    costs: MeasuredCosts


def _write(recipe: Recipe, beginnings: Sequence[Beginning], work: Path, place: torch.device, on: OnProgress) -> None:
    """Let the target write what it has not written yet. It is gone then: a card has better uses for the room."""
    stage, chunks = "target writes", recipe.num_chunks
    if not all(is_whole(chunk_path(work, number)) for number in range(chunks)):
        write_texts(_load_target(recipe.target, place), beginnings, recipe, work, lambda n: on(stage, n, chunks, ""))
    on(stage, chunks, chunks, "")


def _head(recipe: Recipe, lessons: Lessons, config: Any) -> _Head:
    vocab_size = config.get_text_config().vocab_size
    if not 0 < recipe.head_tokens < vocab_size:
        return _Head(None, 1.0)
    return _Head(*frequent_tokens(lessons, vocab_size, recipe.head_tokens))


def _form(recipe: Recipe, config: Any, work: Path, measure: MeasureCosts) -> _Form:
    """Return how many layers the draft has, which a resumed run finds again."""
    file = work / FORM
    if file.is_file():
        known = json.loads(file.read_text("utf-8"))
        costs = MeasuredCosts(*([ForwardCost(*one) for one in known[role]] for role in ("target", "draft")))
        return _Form(known["layers"], costs)
    text = config.get_text_config()
    depth, is_cut = text.num_hidden_layers, 0 < recipe.head_tokens < text.vocab_size
    # Which tokens it has makes no difference to what it costs.
    head = _Head(list(range(recipe.head_tokens)) if is_cut else None, 1.0)
    tried = [recipe.layers] if recipe.layers else sorted({min(one, depth) for one in TRIED_LAYERS})
    drafts = {layers: work / f"form-{layers}" for layers in tried}
    tokenizer = load_tokenizer(recipe.target)
    for layers, folder in drafts.items():
        _save(new_draft(recipe.target, deepcopy(config), layers), head, tokenizer, folder)
    costs_by_layers = measure(recipe.target, drafts)
    layers = recipe.layers or best_layers(costs_by_layers, depth)
    form = _Form(layers, with_layers(costs_by_layers, layers))
    write_json(file, {"layers": layers, **form.costs._asdict()}, "out")
    for folder in drafts.values():
        shutil.rmtree(folder)
    return form


def _train(
    student: Student, form: _Form, recipe: Recipe, lessons: Lessons, work: Path, on_progress: OnProgress
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
    transformers_logging.disable_progress_bar()
    dtype = getattr(torch, dtype_on("auto", device.type))
    model = _loaded(AutoModelForCausalLM, name, dtype=dtype, use_safetensors=True)
    return model.to(device).eval().requires_grad_(False)


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    """Return what a class of transformers loads. Raises ModelLoadError."""
    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    # What transformers raises over bad files is not of one kind.
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise ModelLoadError(f"{name}: {type(error).__name__}: {first_line}") from error


def _save(draft: Any, head: _Head, tokenizer: Any, folder: Path) -> None:
    """Write a draft in bfloat16, with the target's tokenizer and ends of text, and with the tokens of its head."""
    ends = draft.generation_config
    draft.generation_config = GenerationConfig(eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id)
    try:
        draft.to(torch.bfloat16).save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    # safetensors has an error of its own for what the system refuses.
    except Exception as error:
        raise InvalidArgument("out", f"{folder} cannot be written: {error}") from error
    if head.token_ids is not None:
        write_json(folder / short_head.FILE, {"token_ids": head.token_ids}, "out")


def _publish(out: Path, report: Mapping[str, Any]) -> None:
    """Move a whole draft to where it belongs, what makes it one last; then the report."""
    for file in sorted((out / WORK / "draft").iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(out / file.name)
    write_json(out / REPORT, report, "out")
