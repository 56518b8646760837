"""A model from a GGUF file: transformers' own module, with the weights as they are stored or widened."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile
from specgate.runtime.gguf_blocks import PLAIN, tensor_of
from specgate.runtime.stored_weights import Codes, Weight, is_plain, keep, picked, stand_in, tie, whole

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FREQUENCIES = "rope_freqs.weight"


def load_gguf_model(file: GgufFile, config: Any, dtype: torch.dtype, *, keeps_stored: bool) -> Any:
    """Return a causal language model on the CPU.

    Args:
        dtype: of the weights, or with ``keeps_stored`` of the arithmetic, which is float32 then.

    Raises:
        ModelLoadError: a tensor is missing, of another shape, of a kind that is not read, or has no place.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    _check_shapes(file, model)
    for name in file.tensors:
        if name == _FREQUENCIES:
            continue
        module, part = _place(name, model, file.path)
        weight = _turned(tensor_of(file, name), name, config)
        if keeps_stored and part == "weight" and is_plain(module) and weight.dtype is not torch.float32:
            keep(module, weight, stand_in(weight))
        else:
            setattr(module, part, nn.Parameter(whole(weight).to(dtype), requires_grad=False))
    if config.tie_word_embeddings:
        tie(model)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    if _FREQUENCIES in file.tensors:
        _slow_down(model.model.rotary_emb, tensor_of(file, _FREQUENCIES), file)
    return model.eval()


def _check_shapes(file: GgufFile, model: Any) -> None:
    """Refuse a file before anything of it is read."""
    found = {}
    for name, tensor in file.tensors.items():
        if name != _FREQUENCIES:
            module, part = _place(name, model, file.path)
            found[id(module), part] = name
            wanted = tuple(getattr(module, part).shape)
            if tensor.shape != wanted or (len(wanted) == 1 and tensor.kind.name not in PLAIN):
                told = f"{tensor.shape} in {tensor.kind.name}, where {wanted} is needed"
                raise ModelLoadError(f"{file.path}: the tensor {name} is {told}")
    tied = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    for path, module in model.named_modules():
        for part, _ in module.named_parameters(recurse=False):
            if module is not tied and (id(module), part) not in found:
                raise ModelLoadError(f"{file.path}: there is no tensor for {path}.{part}")


def _place(name: str, model: Any, path: Path) -> tuple[Any, str]:
    """Return the module that a tensor belongs to, and the name of its parameter. Raises ModelLoadError: none."""
    stem, _, part = name.rpartition(".")
    own = _TOP.get(stem)
    if stem.startswith("blk.") and part:
        _, number, rest = [*stem.split(".", 2), ""][:3]
        own = f"model.layers.{number}.{_LAYER[rest]}" if rest in _LAYER else None
    try:
        module = model.get_submodule(own) if own else None
    except AttributeError:
        module = None
    if module is None or part not in dict(module.named_parameters(recurse=False)):
        raise ModelLoadError(f"{path}: the tensor {name} has no place in {type(model).__name__}")
    return module, part


def _turned(weight: Weight, name: str, config: Any) -> Weight:
    """Put the rows of queries and keys as transformers turns them: halves of a head, where llama.cpp has pairs."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type != "llama" or heads is None:
        return weight
    rows = torch.arange(weight.shape[0]).view(heads, -1, 2).transpose(1, 2).flatten()
    return picked(weight, rows)


def _slow_down(rotary: Any, factors: Weight, file: GgufFile) -> None:
    """Llama 3.1's frequencies: the file has what each is divided by."""
    if isinstance(factors, Codes) or factors.shape != rotary.inv_freq.shape or not bool((factors > 0).all()):
        raise ModelLoadError(f"{file.path}: the tensor {_FREQUENCIES} does not fit")
    rotary.inv_freq = rotary.inv_freq / factors
