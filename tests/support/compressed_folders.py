"""Folders of small models as compressed-tensors writes them, and the model that the same numbers make."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM


def write_compressed(
    folder: Path,
    source: Path,
    bits: int = 4,
    kind: str = "pack-quantized",
    scale_dtype: torch.dtype = torch.bfloat16,
    ignore: tuple[str, ...] = ("lm_head",),
    embeds: bool = False,
    **told: Any,
) -> Any:
    """Write the model in the folder ``source``, its linear layers in codes, most else in ``scale_dtype``.

    Args:
        ignore: layers that stay numbers.
        embeds: the embedding is in codes too.
        told: of how weights are rounded, such as strategy, group_size and symmetric.

    Returns:
        transformers' own model with the numbers that the folder has, as the library says them of scales in float32.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    copytree(source, folder, dirs_exist_ok=True)
    arguments = QuantizationArgs(num_bits=bits, **{"strategy": "channel", "symmetric": True} | told)
    kinds = (nn.Linear, nn.Embedding) if embeds else (nn.Linear,)
    scheme = QuantizationScheme(targets=[one.__name__ for one in kinds], weights=arguments)
    compressor: Any = BaseCompressor.get_value_from_registry(kind)
    stored = {}
    for path, module in model.named_modules():
        if path == "lm_head" and model.config.tie_word_embeddings:
            continue
        for part, parameter in module.named_parameters(recurse=False):
            parameter.data = parameter.data.to(scale_dtype).float()
            if type(module) not in kinds or path in ignore or part != "weight":
                stored[f"{path}.{part}"] = parameter.data.to(scale_dtype)
                continue
            scale, zeros = _scales(parameter.data, arguments)
            own = {"weight": parameter.data, "weight_scale": scale.to(scale_dtype).float(), "weight_zero_point": zeros}
            written = compressor.compress(own, scheme)
            parameter.data = compressor.decompress(written, scheme)["weight"]
            written["weight_scale"] = scale.to(scale_dtype)
            stored |= {f"{path}.{name}": tensor.contiguous() for name, tensor in written.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    group = {**scheme.model_dump(mode="json"), "format": kind}
    quantised = {
        "quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": list(ignore), "kv_cache_scheme": None, "version": "0.20.1",
    }  # fmt: skip
    change_config(folder, lambda config: config.update(quantization_config=quantised))
    return model.eval()


def change_config(folder: Path, change: Any) -> None:
    """Let ``change`` alter the object in a folder's config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def change_tensors(folder: Path, change: Any) -> None:
    """Let ``change`` alter a folder's tensors by name."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _scales(weight: torch.Tensor, arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points of the least and the greatest number of each group."""
    parts = {"tensor": weight.view(1, -1), "channel": weight.unsqueeze(1)}.get(arguments.strategy)
    grouped = weight.unflatten(-1, (-1, arguments.group_size)) if parts is None else parts
    scales, zeros = calculate_qparams(grouped.amin(-1), grouped.amax(-1), arguments)
    return scales, zeros
