"""What the files of a model say of its weights, without loading them."""

import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from specgate.errors import ModelLoadError
from specgate.gguf.file import is_gguf

_MAX_HEADER_BYTES = 16 << 20
"""Some hundred thousand tensors."""
_LEAST_BLOCK = 8
"""Inputs of a scale: codes of 4 bits in a word."""


def are_bfloat16(name: str) -> bool:
    """Return whether all of a model's weights are stored in bfloat16.

    Raises:
        ModelLoadError: there are no safetensors.
    """
    return {tensor["dtype"] for path in weight_files(name) for tensor in tensors_of(path).values()} == {"BF16"}


def is_quantised(name: str) -> bool:
    """Return whether a model's weights are codes that we read ourselves."""
    return is_gguf(name) or compression(name) is not None


def compression(name: str) -> dict[str, Any] | None:
    """Return what config.json says of how compressed-tensors wrote the weights; None: it says nothing of that."""
    try:
        file = file_of(name, "config.json")
        config = json.loads(file.read_text(encoding="utf-8")) if file else None
    # Who reads the whole configuration tells what is wrong with it.
    except (OSError, ValueError):
        return None
    found = config.get("quantization_config") if isinstance(config, dict) else None
    return found if isinstance(found, dict) and found.get("quant_method") == "compressed-tensors" else None


def code_block(group: int) -> int:
    """Return for how many inputs our kernels have one scale, where a file has one for ``group``: a power of 2."""
    return group & -group


def kept_bits(bits: int, block: int, symmetric: bool, scale_dtype: str) -> int:
    """Return in how many bits a code of so many stays in memory; 32: as a float32 number.

    A code times a scale of 16 bits is exact in float32, and so is an offset. A product with another scale is rounded,
    so an offset beside it would round twice. Without an offset it is rounded once, as the number itself is.
    """
    if block < _LEAST_BLOCK:
        return 32
    if scale_dtype in ("F16", "BF16"):
        return bits
    return 8 if symmetric else 32


class Size(NamedTuple):
    """How many numbers a model's weights are, and what they take in memory where they stay as they are stored."""

    num_parameters: int = 0
    kept_bytes: int = 0


def compressed_size(name: str, told: dict[str, Any]) -> Size:
    """Return the size of a compressed-tensors folder; ``told`` is what ``compression`` returned.

    Raises:
        ModelLoadError, OSError, ValueError, LookupError, TypeError, AttributeError: its files cannot be understood.
    """
    (group,) = told["config_groups"].values()
    tensors = {path: tensor for file in weight_files(name) for path, tensor in tensors_of(file).items()}
    sizes = [_size_of(path, tensors, group["weights"]) for path in tensors]
    return Size(sum(one.num_parameters for one in sizes), sum(one.kept_bytes for one in sizes))


def _size_of(path: str, tensors: dict[str, Any], told: dict[str, Any]) -> Size:
    stem, _, part = path.rpartition("_")
    if part in ("scale", "shape", "point"):
        return Size()
    shape, scale = tensors[path]["shape"], tensors.get(f"{stem if part == 'packed' else path}_scale")
    if scale is None:
        is_short = tensors[path]["dtype"] == "BF16" and len(shape) == 2
        return Size(prod(shape), prod(shape) * (2 if is_short else 4))
    bits, symmetric = told["num_bits"], told["symmetric"]
    num_in = shape[1] * 32 // bits if part == "packed" else shape[1]
    block = code_block(num_in // (scale["shape"] or [1])[-1])
    kept = kept_bits(bits, block, symmetric, scale["dtype"])
    numbers = shape[0] * num_in
    scales = 0 if kept == 32 else numbers // block * (4 if symmetric and kept == 8 else 8)
    return Size(numbers, numbers * kept // 8 + scales)


def tensors_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return what the header of a safetensors file says of each tensor, its "dtype" and "shape" among it.

    Raises:
        OSError, ValueError: it cannot be read, or is no such file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict) or not all(isinstance(one, dict) for one in header.values()):
        raise ValueError(f"{path} is no safetensors file")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def weight_files(name: str) -> list[Path]:
    """Return the files that the weights are loaded from, fetched where ``name`` is a hub id.

    Raises:
        ModelLoadError: there are no safetensors, or the index names files that are not beside it.
    """
    index = file_of(name, "model.safetensors.index.json")
    parts = _parts_of(index) if index else {"model.safetensors"}
    files = [file_of(name, part) for part in sorted(parts)]
    if None in files:
        why = "" if Path(name).is_dir() else " on this machine, and none could be fetched"
        raise ModelLoadError(f"{name} has no safetensors{why}")
    return [file for file in files if file is not None]


def _parts_of(index: Path) -> set[str]:
    try:
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if all(Path(part).name == part for part in parts):
            return parts
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise ModelLoadError(f"{index}: its weight_map does not say in which file beside it each tensor is")


def file_of(name: str, part: str) -> Path | None:
    """Return a file of a model, fetched where ``name`` is a hub id; None: it has no such file."""
    if Path(name).is_dir():
        return Path(name, part) if Path(name, part).is_file() else None
    # Importing transformers takes a second, which the folder of a model can spare.
    from transformers.utils.hub import cached_file

    found = cached_file(name, part, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None
