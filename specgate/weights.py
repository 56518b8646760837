"""What the files of a model's weights say, without loading them."""

import json
from pathlib import Path
from typing import Any

from specgate.errors import ModelLoadError

_MAX_HEADER_BYTES = 100 << 20


def are_bfloat16(name: str) -> bool:
    """Return whether all of a model's weights are stored in bfloat16.

    Raises:
        ModelLoadError: there are no safetensors.
    """
    return {tensor["dtype"] for path in weight_files(name) for tensor in tensors_of(path)} == {"BF16"}


def tensors_of(path: Path) -> list[dict[str, Any]]:
    """Return what the header of a safetensors file says of each tensor, its "dtype" and "shape" among it.

    Raises:
        OSError, ValueError: it cannot be read, or is no such file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    return [tensor for name, tensor in header.items() if name != "__metadata__"]


def weight_files(name: str) -> list[Path]:
    """Return the files that the weights are loaded from, fetched where ``name`` is a hub id.

    Raises:
        ModelLoadError: there are no safetensors.
    """
    index = _file(name, "model.safetensors.index.json")
    parts = (
        set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index else {"model.safetensors"}
    )
    files = [_file(name, part) for part in sorted(parts)]
    if None in files:
        why = "" if Path(name).is_dir() else " on this machine, and none could be fetched"
        raise ModelLoadError(f"{name} has no safetensors{why}")
    return [file for file in files if file is not None]


def _file(name: str, part: str) -> Path | None:
    if Path(name).is_dir():
        return Path(name, part) if Path(name, part).is_file() else None
    # Importing transformers takes a second, which the folder of a model can spare.
    from transformers.utils.hub import cached_file

    found = cached_file(name, part, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None
