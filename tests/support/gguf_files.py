"""GGUF files of small models, written by llama.cpp's own library, and the model that the same numbers make."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoModelForCausalLM

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where the float16 numbers of a block are."""
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip


def write_gguf(path: Path, source: Path, kind: str, frequencies: Sequence[float] = (), **changes: Any) -> Any:
    """Write the model in the folder ``source`` in blocks of a kind, its norms in float32.

    Args:
        frequencies: what each of the rotary frequencies is divided by.
        changes: values that the file has otherwise.

    Returns:
        transformers' own model with the numbers that the file has.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(str(path), architecture)
    values = {
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size, "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]), "vocab_size": config.vocab_size,
    }  # fmt: skip
    own = {f"{architecture}.{name}": value for name, value in values.items()} | _tokenizer(writer, source, config)
    for name, value in (own | changes).items():
        if value is None:
            continue
        writers: dict[type, Any] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
            list: writer.add_array,
        }  # fmt: skip
        writers[type(value)](name, value)
    for name, weight in list(model.state_dict().items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, part = name.rpartition(".")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(stem.split(".")[-1])
        turned = architecture == "llama" and heads is not None
        numbers = _by_pairs(weight, heads or 1) if turned else weight
        own_kind = gguf.GGMLQuantizationType[kind] if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = _blocks(numbers.numpy(), own_kind)
        writer.add_tensor(_own_name(stem) + f".{part}", stored, raw_dtype=own_kind)
        read = torch.from_numpy(np.array(dequantize(stored, own_kind), np.float32)).view(numbers.shape)
        weight.copy_(_by_halves(read, heads or 1) if turned else read)
    if frequencies:
        writer.add_tensor("rope_freqs.weight", np.array(frequencies, np.float32))
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / torch.tensor(frequencies)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model.eval()


def _blocks(numbers: Any, kind: Any) -> Any:
    """Return numbers in blocks; where the library cannot do that, any blocks of small numbers."""
    try:
        return quantize(numbers, kind)
    except NotImplementedError:
        random = np.random.default_rng(numbers.size)
        blocks = random.integers(0, 256, (numbers.size // 256, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
        for place in _SCALES[kind.name]:
            scales = random.uniform(1e-4, 1e-3, len(blocks)).astype(np.float16)
            blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
        return blocks.reshape(len(numbers), -1)


def _own_name(stem: str) -> str:
    if not stem.startswith("model.layers."):
        return _NAMES[stem]
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{_NAMES[rest]}"


def _by_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape).contiguous()


def _by_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _tokenizer(writer: Any, source: Path, config: Any) -> dict[str, Any]:
    """Write the arrays; return the values."""
    file = source / "tokenizer.json"
    if not file.exists():
        return {"tokenizer.ggml.eos_token_id": config.eos_token_id}
    told = json.loads(file.read_text())
    special = {one["id"] for one in told["added_tokens"]}
    known = told["model"]["vocab"] | {one["content"]: one["id"] for one in told["added_tokens"]}
    vocabulary = sorted(known.items(), key=lambda both: both[1])
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token_id in special else 1 for _, token_id in vocabulary])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]])
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": config.eos_token_id, "tokenizer.ggml.bos_token_id": config.bos_token_id,
    }  # fmt: skip
