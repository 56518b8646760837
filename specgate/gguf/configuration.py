"""A model's configuration, as transformers has it, from a GGUF file's values."""

import math
from typing import Any

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile, naming

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Those that are read, and transformers' name of each."""
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
_MOST, _MOST_LAYERS = 1 << 24, 1 << 10


def configuration(file: GgufFile) -> Any:
    """Return a ``PretrainedConfig``.

    Raises:
        ModelLoadError: the architecture is not one that is read, or a value is missing or cannot be.
    """
    with naming(file):
        return _configuration(file)


def _configuration(file: GgufFile) -> Any:
    from transformers import AutoConfig

    name = file.values.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelLoadError(f"{file.path}: its architecture is {name!r}; read are {', '.join(ARCHITECTURES)}")
    heads = _number(file, f"{name}.attention.head_count", int)
    known = {
        f"{name}.vocab_size": len(file.values.get("tokenizer.ggml.tokens", ())),
        f"{name}.attention.head_count_kv": heads,
        f"{name}.attention.key_length": _number(file, f"{name}.embedding_length", int) // max(heads, 1),
    }
    sizes = {own: _number(file, f"{name}.{key}", int, known.get(f"{name}.{key}")) for own, key in _SIZES.items()}
    if wrong := {key: value for key, value in sizes.items() if not 0 < value < _MOST}:
        raise ModelLoadError(f"{file.path}: sizes that cannot be: {wrong}")
    num_layers = sizes["num_hidden_layers"]
    if num_layers > _MOST_LAYERS or not all(f"blk.{i}.attn_norm.weight" in file.tensors for i in range(num_layers)):
        raise ModelLoadError(f"{file.path}: there are no tensors for {num_layers} layers")
    _check_positions(file, name)
    if _number(file, f"{name}.rope.dimension_count", int, sizes["head_dim"]) != sizes["head_dim"]:
        raise ModelLoadError(f"{file.path}: it turns a part of each head alone, which is not read")
    has_biases = "blk.0.attn_q.bias" in file.tensors
    return AutoConfig.for_model(
        ARCHITECTURES[name],
        **sizes,
        # float32's nearest number to what its publishers wrote.
        rms_norm_eps=float(f"{_number(file, f'{name}.attention.layer_norm_rms_epsilon', float):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": _number(file, f"{name}.rope.freq_base", float, 10000.0)},
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias=has_biases,
        bos_token_id=file.values.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=_ends(file),
    )


def _check_positions(file: GgufFile, name: str) -> None:
    """Raise ModelLoadError where positions are scaled. Where a file does not say how, llama.cpp scales linearly."""
    kind = file.values.get(f"{name}.rope.scaling.type", "linear")
    factors = [file.values.get(f"{name}.rope.{key}", 1.0) for key in ("scaling.factor", "scale_linear")]
    if kind != "none" and (kind != "linear" or not set(factors) <= {0.0, 1.0}):
        raise ModelLoadError(f"{file.path}: its positions are scaled by {kind!r}, which is not read")


def _ends(file: GgufFile) -> list[int] | None:
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(_number(file, key, int) for key in keys if key in file.values)) or None


def _number(file: GgufFile, key: str, kind: type, otherwise: Any = None) -> Any:
    value = file.values.get(key, otherwise)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ModelLoadError(f"{file.path}: {key} is {'missing' if value is None else 'no number'}")
    return kind(value)
