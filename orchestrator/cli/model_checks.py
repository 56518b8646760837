"""The doctor's checks of one model and of the pair. They only read files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.cli.findings import Finding, Status
from orchestrator.cli.model_facts import ModelFacts
from specgate.gguf.file import is_gguf
from specgate.tokenizer import first_difference

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DIFFERENCE_IN_WORDS = {
    "vocabulary": "the same token ids stand for different pieces of text",
    "merges": "texts are cut into different tokens",
    "normalizer": "texts are normalised differently before they are cut",
    "pre_tokenizer": "texts are split into words differently",
    "added_tokens": "special tokens have different ids",
}


def check_files(role: str, folder: Path) -> Iterator[Finding]:
    """Look at a model's folder before anything reads it."""
    if is_gguf(str(folder)) and folder.is_file():
        yield Finding(role, "files", Status.OK, f"one GGUF file, {folder}")
    elif not folder.is_dir():
        is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder))
        advice = f"download it first: hf download {folder}" if is_hub_id else "give the folder of a model"
        yield Finding(role, "files", Status.PROBLEM, f"{folder} is not a folder on this machine", advice)
    elif not (folder / "config.json").is_file():
        advice = "point to the folder that holds config.json, the weights and the tokenizer"
        yield Finding(role, "files", Status.PROBLEM, f"{folder} has no config.json", advice)
    elif files := list(folder.glob("*.safetensors")):
        yield Finding(role, "files", Status.OK, f"{len(files)} safetensors file(s) in {folder}")
    elif pickled := sorted(file.name for pattern in PICKLED for file in folder.glob(pattern)):
        problem = f"weights are pickled ({', '.join(pickled)}); loading them could run code, so they are refused"
        advice = "convert: AutoModelForCausalLM.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        yield Finding(role, "files", Status.PROBLEM, problem, advice)
    else:
        yield Finding(role, "files", Status.PROBLEM, f"{folder} holds no weights", "safetensors files are needed")


def check_architecture(role: str, config: Any) -> Iterator[Finding]:
    """Ask transformers for the model's class, and whether paged attention can stand in for its own."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    name = (config.architectures or [config.model_type])[0]
    if getattr(config, "auto_map", None):
        problem = f"{name} brings code of its own (auto_map), which is never run"
        advice = "take a model whose architecture is part of transformers"
        yield Finding(role, "architecture", Status.PROBLEM, problem, advice)
    elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        problem = f"{name} is no causal language model"
        yield Finding(role, "architecture", Status.PROBLEM, problem, "take a model that writes text from left to right")
    else:
        refusals = list(_refusals(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]))
        for problem in refusals:
            advice = "take another model; serving this one would change what it says"
            yield Finding(role, "architecture", Status.PROBLEM, f"{name} {problem}", advice)
        if not refusals:
            yield Finding(role, "architecture", Status.OK, f"{name} is known; loading ends with a numerical check")


def _refusals(config: Any, model_class: Any) -> Iterator[str]:
    """Say in words what paged attention does not compute."""
    import inspect

    text = config.get_text_config()
    if getattr(text, "alibi", False) or getattr(text, "position_embedding_type", "") == "alibi":
        yield "adds position biases to attention scores (ALiBi), which are not computed here"
    module = inspect.getmodule(model_class)
    if module and "s_aux=" in inspect.getsource(module):
        yield "uses attention sinks, which are not computed here"
    can_replace = getattr(model_class, "_can_set_attn_implementation", lambda: True)()
    if not (can_replace and getattr(model_class, "_supports_attention_backend", True)):
        yield "has an attention of its own that cannot be replaced (it ignores AttentionInterface)"


def check_tokenizer(facts: ModelFacts) -> Iterator[Finding]:
    """Compare the tokenizer with the rows of the model's vocabulary."""
    size, rows = facts.tokenizer_size, facts.vocab_rows
    if facts.tokenizer_problem:
        advice = "copy the tokenizer's files of the original model into the folder"
        yield Finding(facts.role, "tokenizer", Status.PROBLEM, facts.tokenizer_problem, advice)
    elif size is None:
        advice = "prompts must be token ids; add tokenizer.json for text"
        yield Finding(facts.role, "tokenizer", Status.WARNING, "there is none", advice)
    elif rows is None or size == rows:
        yield Finding(facts.role, "tokenizer", Status.OK, f"{size} tokens")
    elif size < rows:
        padded = f"{size} tokens, {rows} rows in the model; the {rows - size} rows of padding are never chosen"
        yield Finding(facts.role, "tokenizer", Status.OK, padded)
    else:
        problem = f"{size} tokens, but the model has {rows} rows only"
        advice = "the tokenizer belongs to another model, or tokens were added without resizing the embeddings"
        yield Finding(facts.role, "tokenizer", Status.PROBLEM, problem, advice)


def check_end(facts: ModelFacts) -> Iterator[Finding]:
    """See whether the model can end a text by itself."""
    if facts.eos_token_ids:
        ids = ", ".join(str(token_id) for token_id in facts.eos_token_ids)
        yield Finding(facts.role, "end", Status.OK, f"ends at token {ids}")
    else:
        advice = "give --max-tokens, --stop or --stop-token-id"
        yield Finding(facts.role, "end", Status.WARNING, "no end-of-sequence token is known", advice)


def check_pair(target: ModelFacts, draft: ModelFacts, *, translates: bool = False) -> Iterator[Finding]:
    """Ask whether the draft fits the target; ``translates``: its drafter is told of the target's tokenizer."""
    yield _shared_tokenizer(target, draft, translates=translates)
    if target.vocab_rows and draft.vocab_rows and target.vocab_rows != draft.vocab_rows:
        widths = f"target {target.vocab_rows} rows, draft {draft.vocab_rows}; only ids that both have are drafted"
        yield Finding("pair", "vocabulary", Status.OK, widths)
    if target.context_length and draft.context_length:
        yield _context(target.context_length, draft.context_length)
    if target.num_parameters and draft.num_parameters:
        yield _sizes(target.num_parameters, draft.num_parameters)


def _shared_tokenizer(target: ModelFacts, draft: ModelFacts, *, translates: bool) -> Finding:
    if not (target.tokenizer_fingerprint and draft.tokenizer_fingerprint):
        advice = "compare them by hand: drafting helps only where ids mean the same"
        unknown = "one side has no tokenizer, so nothing can be compared"
        return Finding("pair", "tokenizer", Status.WARNING, unknown, advice)
    difference = first_difference(target.tokenizer_fingerprint, draft.tokenizer_fingerprint)
    if difference is None:
        return Finding("pair", "tokenizer", Status.OK, "both have the same one")
    words = _DIFFERENCE_IN_WORDS.get(difference, "they differ")
    if translates:
        told = f"{difference} differs: {words}; drafts are translated"
        return Finding("pair", "tokenizer", Status.WARNING, told, "a draft with the target's tokenizer drafts more")
    advice = "start the drafter with --target-tokenizer, or take a draft of the target's own family"
    return Finding("pair", "tokenizer", Status.PROBLEM, f"{difference} differs: {words}", advice)


def _context(target: int, draft: int) -> Finding:
    if draft >= target:
        return Finding("pair", "context", Status.OK, f"target {target} tokens, draft {draft}")
    message = f"target {target} tokens, draft {draft}: of a longer text the draft reads the end alone"
    return Finding("pair", "context", Status.OK, message)


def _sizes(target: int, draft: int) -> Finding:
    message = f"target {in_short(target)} parameters, draft {in_short(draft)} (1/{target / draft:.1f})"
    if draft * 2 <= target:
        return Finding("pair", "size", Status.OK, message)
    advice = "a draft pays when it costs a small part of the target; a tenth or less is usual"
    return Finding("pair", "size", Status.WARNING, message, "are they swapped? " * (draft > target) + advice)


def in_short(number: float) -> str:
    """Return a large number with k, M or G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"
