"""From a target to a draft: its texts, the training, the judgement, the folder."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from specgate.devices import pick_device
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import load_tokenizer
from specgate.types import dtype_on
from specgate.weights import weight_files
from specgate_lab.options import make_folder
from specgate_lab.report import write_json, write_whole
from specgate_lab.train.lessons import read_chunks
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.student import draft_config, new_draft
from specgate_lab.train.texts import Beginning, beginnings_of, write_texts
from specgate_lab.train.training import Trainer, judge

WORK, RECIPE, REPORT = "training", "recipe.json", "training.json"
_BLOCK_BYTES, _BLOCKS = 4096, 32
"""Of each file of weights that go into a fingerprint: two trainings of one shape differ in every one of them."""

OnProgress = Callable[[str, int, int, str], None]
"""Called with a stage's name, how much of it is done, how much there is, and a word on it."""


def make_draft(
    recipe: Recipe, out: Path, prompts: Sequence[Beginning], device: str, on_progress: OnProgress
) -> dict[str, Any]:
    """Write a draft for ``recipe.target`` into the folder ``out``, and return what was measured of it.

    Work that is done already is found in ``out/training`` and not done again. The folder has a ``config.json`` only
    once the draft is whole.

    Raises:
        InvalidArgument: the folder holds something else, or cannot be written; a prompt is too long, or has ids that
            the target has not; rows are longer than its context; no such device.
        ModelLoadError: the target cannot be loaded.
    """
    place, tokenizer = pick_device(device), load_tokenizer(recipe.target)
    beginnings = beginnings_of(tokenizer, prompts, recipe.row_tokens)
    config = _loaded(AutoConfig, recipe.target)
    shape = draft_config(config.get_text_config(), recipe)
    _check(recipe, beginnings, shape)
    work = _begin(recipe, out, prompts)
    if (out / REPORT).exists():
        shutil.rmtree(work, ignore_errors=True)
        return dict(json.loads((out / REPORT).read_text(encoding="utf-8")))
    target, chunks = _load_target(recipe.target, place), recipe.num_chunks
    write_texts(target, beginnings, recipe, work, lambda done: on_progress("target writes", done, chunks, ""))
    draft = new_draft(target, shape, recipe.seed).to(place)
    ends = target.generation_config
    # A card has better uses for the room.
    del target
    report = {"recipe": asdict(recipe), "parameters": draft.num_parameters()}
    report |= _train(draft, recipe, work, on_progress)
    _save(draft, ends, tokenizer, out, report)
    shutil.rmtree(work)
    return report


def _train(draft: Any, recipe: Recipe, work: Path, on_progress: OnProgress) -> dict[str, float]:
    """Train a draft on all texts but the last ones, and return what it says of these."""
    last = recipe.num_chunks - 1
    trainer = Trainer(draft, recipe, work)
    on_progress("draft learns", trainer.step, recipe.steps, "")
    trainer.run(
        read_chunks(work, range(last)),
        lambda step, loss: on_progress("draft learns", step, recipe.steps, f"loss {loss:.2f}"),
    )
    return judge(draft, read_chunks(work, range(last, last + 1)))


def _check(recipe: Recipe, beginnings: Sequence[Beginning], shape: Any) -> None:
    """Raise InvalidArgument for what the target could not read; nothing is written by then."""
    if recipe.row_tokens > shape.max_position_embeddings:
        limit = shape.max_position_embeddings
        raise InvalidArgument("row_tokens", f"{recipe.row_tokens} are more than the target's context of {limit}")
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


def _save(draft: Any, ends: Any, tokenizer: Any, out: Path, report: dict[str, Any]) -> None:
    """Write the draft in bfloat16, with the target's tokenizer and ends of text; the report is last."""
    draft.generation_config = GenerationConfig(eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id)
    whole = out / WORK / "draft"
    try:
        draft.to(torch.bfloat16).save_pretrained(whole)
        if tokenizer is not None:
            tokenizer.save_pretrained(whole)
        for file in sorted(whole.iterdir(), key=lambda file: file.name == "config.json"):
            file.replace(out / file.name)
    # safetensors has an error of its own for what the system refuses.
    except Exception as error:
        raise InvalidArgument("out", f"{out} cannot be written: {error}") from error
    write_json(out / REPORT, report, "out")
