"""Texts that the target wrote, with its probabilities for every token: what a draft learns from."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specgate.errors import InvalidArgument

TOP = 32
"""Tokens of the target's distribution that are kept: they hold over 0.9 of it at almost every position of a text."""


class Lessons(NamedTuple):
    """Rows of text, padded on the left.

    ``ids`` [rows, width] int32; a row begins at ``starts`` [rows] int32. The target's distribution of the token at a
    position, given the tokens before it, is in ``top_ids`` [rows, width, TOP] int32 and ``top_log_probs`` [rows, width,
    TOP] float16, the likeliest first. A draft learns, and is judged, from position ``written`` [rows] int32 up to
    ``ends`` [rows] int32, where the target has ended; ``greedy`` [rows] bool marks the rows in which the tokens there
    are its likeliest ones.
    """

    ids: torch.Tensor
    starts: torch.Tensor
    written: torch.Tensor
    ends: torch.Tensor
    greedy: torch.Tensor
    top_ids: torch.Tensor
    top_log_probs: torch.Tensor

    @property
    def judged(self) -> torch.Tensor:
        """Positions at which a draft learns and is judged: bool [rows, width]."""
        places = torch.arange(self.ids.shape[1])
        return (places >= self.written[:, None]) & (places < self.ends[:, None])

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return what ``forward`` of a model takes: ids [rows, width], and a mask where there is padding."""
        inputs = {"input_ids": self.ids.long().to(device)}
        if self.starts.any():
            inputs["attention_mask"] = (torch.arange(self.ids.shape[1]) >= self.starts[:, None]).long().to(device)
        return inputs

    def rows(self, chosen: torch.Tensor) -> Self:
        """Return the rows of these numbers."""
        return type(self)(*(part[chosen] for part in self))


def chunk_path(folder: Path, number: int) -> Path:
    """Return the file of one batch of texts."""
    return folder / f"texts-{number:05d}.safetensors"


def is_whole(path: Path) -> bool:
    """Whether a batch is there."""
    if not path.is_file():
        return False
    with safe_open(path, framework="pt") as file:
        return set(file.keys()) == set(Lessons._fields)


def read_chunks(folder: Path, numbers: range) -> Lessons:
    """Return the texts of these batches as one."""
    chunks = [Lessons(**load_file(chunk_path(folder, number))) for number in numbers]
    return Lessons(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write safetensors that are whole or are not there, whenever the process is killed.

    Raises:
        InvalidArgument: the disk is full, or the folder cannot be written to.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, unfinished)
        os.replace(unfinished, path)
    # safetensors has an error of its own for what the system refuses.
    except Exception as error:
        unfinished.unlink(missing_ok=True)
        raise InvalidArgument("out", f"{path} cannot be written: {error}") from error


def batches(lessons: Lessons, tokens: int, seed: int, start: int) -> Iterator[Lessons]:
    """Yield batches of about ``tokens`` tokens from number ``start`` on: all rows in random order, then again, forever.

    ``seed`` and the number of a batch determine its rows, so training can resume in the middle.
    """
    num_rows = len(lessons.ids)
    size = max(1, min(tokens // lessons.ids.shape[1], num_rows))
    a_turn = num_rows // size
    number, order = start, torch.empty(0)
    while True:
        turn, place = divmod(number, a_turn)
        if place == 0 or number == start:
            order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed + turn))
        yield lessons.rows(order[place * size :][:size])
        number += 1
