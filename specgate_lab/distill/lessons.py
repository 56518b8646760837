"""Texts that the target wrote, and what it said of every token: what a draft learns from."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from specgate_lab.distill.files import write_tensors

TOP = 32
"""Of the target's distribution that is kept: more than 0.9 of it at almost every position of a text."""


class Lessons(NamedTuple):
    """Rows of text, padded on the left.

    ``ids`` [rows, width] int32; a row begins at ``starts`` [rows] int32. What the target said of the token at a
    position, given those before it, is in ``top_ids`` [rows, width, TOP] int32 and ``top_log_probs`` [rows, width, TOP]
    float16, the likeliest first, from position ``written`` [rows] int32 on: before it the text is not the target's.
    ``log_probs`` [rows, width] float32 are those of the tokens that it wrote; ``greedy`` [rows] bool are the rows in
    which these are its likeliest ones.
    """

    ids: torch.Tensor
    starts: torch.Tensor
    written: torch.Tensor
    greedy: torch.Tensor
    top_ids: torch.Tensor
    top_log_probs: torch.Tensor
    log_probs: torch.Tensor

    @property
    def judged(self) -> torch.Tensor:
        """Positions of which the target's word is known: bool [rows, width]."""
        return torch.arange(self.ids.shape[1]) >= self.written[:, None]

    @property
    def attention_mask(self) -> torch.Tensor | None:
        """What ``forward`` of a model takes, [rows, width]; None where there is no padding."""
        if not self.starts.any():
            return None
        return (torch.arange(self.ids.shape[1]) >= self.starts[:, None]).long()

    def rows(self, chosen: torch.Tensor) -> Self:
        """Return the rows of these numbers."""
        return type(self)(*(part[chosen] for part in self))


def chunk_path(folder: Path, number: int) -> Path:
    """Return where the texts of one batch are kept."""
    return folder / f"texts-{number:05d}.safetensors"


def write_chunk(path: Path, lessons: Lessons) -> None:
    """Keep a batch; a file of this name is whole, whenever the process is killed."""
    write_tensors(path, lessons._asdict())


def read_chunks(folder: Path, numbers: range) -> Lessons:
    """Return the texts of these batches as one."""
    chunks = [Lessons(**load_file(chunk_path(folder, number))) for number in numbers]
    return Lessons(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def is_whole(path: Path) -> bool:
    """Whether a batch is there."""
    if not path.is_file():
        return False
    with safe_open(path, framework="pt") as file:
        return set(file.keys()) == set(Lessons._fields)


def batches(lessons: Lessons, tokens: int, seed: int, start: int) -> Iterator[Lessons]:
    """Yield batches of about ``tokens`` tokens from number ``start`` on: all rows in random order, then again, forever.

    Which rows a batch has follows from ``seed`` and its number alone, so training can go on in the middle.
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
