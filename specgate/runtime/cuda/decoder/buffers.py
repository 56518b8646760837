"""What a draft's kernels read and write: a batch that reaches the device in one copy, and what phases hand on."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specgate.runtime.cuda.decoder.shape import MOST_STEPS, DecoderShape, DraftTiles
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows

_SCALARS = 4


class DraftBatch(NamedTuple):
    """Sequences and what is to be drafted after them; all but the pages are parts of one buffer.

    int64: ``keys`` [steps, sequences] of the noise. int32: ``scalars`` are which step is next, how many
    sequences, from which id on no token exists, and the bits of a float32, the temperature, 0 for greedy; ``lengths``
    [sequences], tokens up to and with the last row, ``used`` [sequences], rows that are new,
    ``token_ids`` [sequences, width], ``table`` [sequences, columns].

    ``pages`` [2 * layers, pages, page_size, kv_heads, dim], a layer's keys before its values, each ``page_stride``
    numbers further.
    """

    keys: Any
    scalars: Any
    lengths: Any
    used: Any
    token_ids: Any
    table: Any
    pages: Any = None
    page_stride: int = 0


class Workspace(NamedTuple):
    """float32 unless said. For the host: ``report``, token and score [steps, sequences, 2], and ``logits`` [steps,
    sequences, vocabulary].

    From phase to phase: ``hidden`` [rows, hidden], ``query`` [rows, heads, dim], attention's ``partial`` [parts, rows,
    heads, dim], ``greatest`` and ``total`` [parts, rows, heads], ``gated`` [rows, ffn], float64 ``best`` and int32
    ``best_id`` [sequences, programs].
    """

    report: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor
    query: torch.Tensor
    partial: torch.Tensor
    greatest: torch.Tensor
    total: torch.Tensor
    gated: torch.Tensor
    best: torch.Tensor
    best_id: torch.Tensor


def num_words(s: DecoderShape) -> int:
    """Return how many int64 a batch takes."""
    return MOST_STEPS * s.SEQUENCES + (_SCALARS + s.SEQUENCES * (2 + s.WIDTH + s.COLUMNS) + 1) // 2


def unpack(words: Any, s: DecoderShape, narrow: Any) -> DraftBatch:
    """Return the parts of int64 ``words``, a tensor or an array; ``narrow`` is its library's int32."""
    num_keys = MOST_STEPS * s.SEQUENCES
    sizes = [_SCALARS, s.SEQUENCES, s.SEQUENCES, s.num_rows, s.SEQUENCES * s.COLUMNS]
    ends = np.cumsum([0, *sizes]).tolist()
    rest = words[num_keys:].view(narrow)
    scalars, lengths, used, token_ids, table = (rest[a:b] for a, b in itertools.pairwise(ends))
    keys = words[:num_keys].reshape(MOST_STEPS, s.SEQUENCES)
    token_ids, table = token_ids.reshape(s.SEQUENCES, s.WIDTH), table.reshape(s.SEQUENCES, s.COLUMNS)
    return DraftBatch(keys, scalars, lengths, used, token_ids, table)


def pack(
    batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int, s: DecoderShape, pinned: bool
) -> torch.Tensor:
    """Return words on the host that hold ``batch``, its rows ``WIDTH`` at the most, and the noise of ``num_steps``.

    The memory is new each time: an earlier copy to the device may still be reading its own.
    """
    words = torch.zeros(num_words(s), dtype=torch.int64, pin_memory=pinned)
    parts, params = unpack(words.numpy(), s, np.int32), choices[0].params
    parts.scalars[:3] = 0, len(batch), choices[0].vocab_size
    parts.scalars[3:].view(np.float32)[0] = 0.0 if params.greedy else params.temperature
    for i, ((sequence, num_rows, _), choosing) in enumerate(zip(batch, choices, strict=True)):
        length = sequence.num_cached + num_rows
        parts.lengths[i], parts.used[i] = length, num_rows
        parts.token_ids[i, s.WIDTH - num_rows :] = sequence.token_ids[sequence.num_cached : length]
        pages = sequence.block_table[: -(-(length + num_steps - 1) // s.PAGE)]
        parts.table[i, : len(pages)] = pages
        if not params.greedy:
            parts.keys.view(np.uint64)[:num_steps, i] = choosing.noise_keys(num_steps)
    return words


def workspace_for(s: DecoderShape, t: DraftTiles, device: torch.device) -> Workspace:
    def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(sizes, dtype=dtype, device=device)

    rows = s.num_rows
    return Workspace(
        report=zeros(MOST_STEPS, s.SEQUENCES, 2),
        logits=zeros(MOST_STEPS, s.SEQUENCES, s.VOCAB),
        hidden=zeros(rows, s.HIDDEN),
        query=zeros(rows, s.HEADS, s.DIM),
        partial=zeros(t.PARTS, rows, s.HEADS, s.DIM),
        greatest=zeros(t.PARTS, rows, s.HEADS),
        total=zeros(t.PARTS, rows, s.HEADS),
        gated=zeros(rows, s.FFN),
        best=zeros(s.SEQUENCES, t.PROGRAMS, dtype=torch.float64),
        best_id=zeros(s.SEQUENCES, t.PROGRAMS, dtype=torch.int32),
    )
