#!/usr/bin/env python3
"""Write a GGUF file's model as a HuggingFace folder: convert_gguf.py GGUF FOLDER [LAYER TO LEAVE OUT ...]

In bfloat16, as its publishers and nearly all others store theirs.

Run by scripts/real_model.py, which puts `gguf` and `accelerate` on its path.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

PRE_TOKENIZERS = {
    # Numbers are cut into digits first, which transformers does not read from the file.
    "llama": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
"""What a model's tokenizer does before BPE, where transformers reads the file differently; by the model's type."""

KNOWN: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 49152,
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gemma3_text": {
        "vocab_size": 262144,
        "num_hidden_layers": 18,
        "hidden_size": 640,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
}
"""What the publishers' own config.json of the two models say, by the model's type."""


def plain_config(read: Any, skipped: set[int]) -> Any:
    """Return the configuration that a model has whose weights were never quantized, without the skipped layers.

    Raises:
        SystemExit: it is not that of the model that is known.
    """
    fields = read.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        fields.pop(name, None)
    # The file has it in float32.
    fields["rms_norm_eps"] = float(f"{fields['rms_norm_eps']:.6g}")
    wrong = {name: fields.get(name) for name, value in KNOWN[read.model_type].items() if fields.get(name) != value}
    if wrong:
        raise SystemExit(f"the file is read as another model: {wrong} where {KNOWN[read.model_type]} is known")
    fields["num_hidden_layers"] -= len(skipped)
    if fields.get("layer_types"):
        fields["layer_types"] = [kind for layer, kind in enumerate(fields["layer_types"]) if layer not in skipped]
    return type(read).from_dict(fields)


def plain_state(model: Any, skipped: set[int]) -> dict[str, torch.Tensor]:
    """Return the weights by name, the layers numbered anew."""
    kept = [layer for layer in range(model.config.num_hidden_layers) if layer not in skipped]
    numbers = {f"model.layers.{layer}.": f"model.layers.{number}." for number, layer in enumerate(kept)}
    dropped = tuple(f"model.layers.{layer}." for layer in skipped)
    state = {}
    for name, values in model.state_dict().items():
        prefix = name[: name.find(".", len("model.layers.")) + 1] if name.startswith("model.layers.") else ""
        if not name.startswith(dropped):
            state[numbers.get(prefix, "") + name.removeprefix(prefix)] = values
    return state


def write_model(gguf: Path, folder: Path, skipped: set[int]) -> str:
    """Write weights, config.json and generation_config.json; return the model's type."""
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = plain_config(read.config, skipped)
    model = type(read).from_pretrained(None, config=config, state_dict=plain_state(read, skipped), dtype=torch.float32)
    special = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**special)
    model.to(torch.bfloat16).save_pretrained(folder)
    return str(config.model_type)


def write_tokenizer(gguf: Path, folder: Path, model_type: str) -> None:
    """Write the tokenizer, and its chat template if the file has one."""
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if model_type in PRE_TOKENIZERS:
        tokenizer.backend_tokenizer.pre_tokenizer = PRE_TOKENIZERS[model_type]()
    tokenizer.model_max_length = KNOWN[model_type]["max_position_embeddings"]
    tokenizer.save_pretrained(folder)


def main() -> None:
    gguf, folder, skipped = Path(sys.argv[1]), Path(sys.argv[2]), {int(layer) for layer in sys.argv[3:]}
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    model_type = write_model(gguf, folder, skipped)
    write_tokenizer(gguf, folder, model_type)


if __name__ == "__main__":
    main()
