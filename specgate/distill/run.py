"""From a target to a draft: its texts, the training, the judgement, the folder."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from specgate.distill.judge import judge
from specgate.distill.lessons import read_chunks
from specgate.distill.recipe import Recipe
from specgate.distill.student import new_draft
from specgate.distill.texts import Beginning, beginnings_of, write_texts
from specgate.distill.training import Trainer
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import load_tokenizer
from specgate.types import dtype_on
from specgate.weights import fingerprint

WORK, RECIPE, REPORT = "training", "recipe.json", "training.json"

OnProgress = Callable[[str, int, int, str], None]
"""Called with a stage's name, how much of it is done, how much there is, and a word on it."""


def make_draft(
    recipe: Recipe, out: Path, prompts: Sequence[Beginning], device: str, on_progress: OnProgress
) -> dict[str, Any]:
    """Write a draft for ``recipe.target`` into the folder ``out``, and return what was measured of it.

    What is done already is found in ``out/training`` and not done again; a finished draft is judged no second time.
    The folder has a ``config.json`` only once the draft is whole.

    Raises:
        InvalidArgument: the folder holds something else, or cannot be written; a prompt is too long; no such device.
        ModelLoadError: the target cannot be loaded.
    """
    work = _begin(recipe, out, prompts)
    if (out / REPORT).exists():
        return dict(json.loads((out / REPORT).read_text(encoding="utf-8")))
    tokenizer = load_tokenizer(recipe.target)
    beginnings = beginnings_of(tokenizer, prompts, recipe.row_tokens)
    target = _load(recipe.target, _device(device))
    chunks = recipe.num_chunks
    write_texts(target, beginnings, recipe, work, lambda done: on_progress("target writes", done, chunks, ""))
    draft = new_draft(target, recipe).to(target.device)
    trainer = Trainer(draft, recipe, work)
    on_progress("draft learns", trainer.step, recipe.steps, "")
    # The last texts are kept for the judgement.
    trainer.run(
        read_chunks(work, range(chunks - 1)),
        lambda step, loss: on_progress("draft learns", step, recipe.steps, f"loss {loss:.2f}"),
    )
    judged = judge(draft, read_chunks(work, range(chunks - 1, chunks)))
    report = {"recipe": recipe.to_object(), "parameters": draft.num_parameters(), **judged}
    _save(draft, target, tokenizer, out, report)
    shutil.rmtree(work)
    return report


def _begin(recipe: Recipe, out: Path, prompts: Sequence[Beginning]) -> Path:
    """Return the folder of what is unfinished, once it is known to be of this recipe."""
    work = out / WORK
    # What a number of tokens means changes with the weights; two prompts files may have one name.
    told = {**recipe.to_object(), "fingerprint": fingerprint(recipe.target), "prompts": [*map(list, prompts)]}
    mark = json.dumps(told, indent=2)
    try:
        if out.is_dir() and any(out.iterdir()):
            found = out / RECIPE
            if not found.is_file() or found.read_text(encoding="utf-8") != mark:
                raise InvalidArgument("out", f"{out} holds something else; it is not overwritten")
        work.mkdir(parents=True, exist_ok=True)
        (out / RECIPE).write_text(mark, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument("out", f"{out} cannot be written: {error.strerror}") from error
    return work


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidArgument("device", f"{name!r} is not here; this machine has the CPU alone")
    return torch.device(name)


def _load(name: str, device: torch.device) -> Any:
    transformers_logging.disable_progress_bar()
    dtype = getattr(torch, dtype_on("auto", device.type))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
    # What transformers raises over bad files is not of one kind.
    except Exception as error:
        raise ModelLoadError(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error
    return model.to(device).eval().requires_grad_(False)


def _save(draft: Any, target: Any, tokenizer: Any, out: Path, report: dict[str, Any]) -> None:
    """Write the draft in bfloat16, with the target's tokenizer and its ends of text; the report comes last."""
    ends = target.generation_config.eos_token_id
    draft.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=target.generation_config.pad_token_id)
    try:
        draft.to(torch.bfloat16).save_pretrained(out)
        if tokenizer is not None:
            tokenizer.save_pretrained(out)
        (out / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except Exception as error:
        raise InvalidArgument("out", f"{out} cannot be written: {error}") from error
