"""Files that are whole or are not there, whenever the process is killed."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from specgate.errors import InvalidArgument


def unfinished(path: Path) -> Path:
    """Return the name that a file has while it is written."""
    return path.with_name(f".{path.name}.unfinished")


def make_folder(path: Path) -> None:
    """Make a folder. Raises InvalidArgument where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument("out", f"{path} cannot be written: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write text. Raises InvalidArgument where the disk is full or the folder cannot be written to."""
    try:
        unfinished(path).write_text(text, encoding="utf-8")
        os.replace(unfinished(path), path)
    except OSError as error:
        unfinished(path).unlink(missing_ok=True)
        raise InvalidArgument("out", f"{path} cannot be written: {error.strerror}") from error


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write safetensors. Raises InvalidArgument as ``write_text`` does."""
    try:
        save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, unfinished(path))
        os.replace(unfinished(path), path)
    # safetensors has an error of its own for what the system refuses.
    except Exception as error:
        unfinished(path).unlink(missing_ok=True)
        raise InvalidArgument("out", f"{path} cannot be written: {error}") from error
