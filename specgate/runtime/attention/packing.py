"""One forward's integers, packed so that they reach the device in one copy.

A layout says how many rows and sequences there are; sequence i owns the rows from ``cu_seq_q[i]`` to
``cu_seq_q[i + 1]``. It may own more rows than it uses: what it uses are the last of them, so that attention that is
aligned at the end of a sequence sees the right keys. The rows before those, and sequences that are not used at all,
are padding: they run, they write to a scratch page that no session ever gets, and their logits are not read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specgate.runtime.scheduler import Rows


class Layout(NamedTuple):
    """Sizes of a packing.

    Attributes:
        owned: how many rows each sequence owns.
        num_columns: pages of a sequence at the most.
        spare: padding rows after all others, which no sequence owns.
    """

    owned: tuple[int, ...]
    num_columns: int
    spare: int = 0

    @property
    def num_rows(self) -> int:
        return sum(self.owned) + self.spare

    @property
    def num_words(self) -> int:
        """How many int64 the packing takes."""
        num_sequences = len(self.owned)
        return 4 * self.num_rows + -(-(2 * (num_sequences + 1) + num_sequences * (1 + self.num_columns)) // 2)


class Packing(NamedTuple):
    """The parts of a packing, as views of it: tensors, or numpy arrays of the same memory.

    int64 [rows]: ``token_ids``, ``positions``, ``slots`` (page * page_size + offset, where a row's key and value go)
    and ``keep``, the rows whose logits are wanted, first of all. int32: ``cu_seq_q`` and ``cu_seq_k`` [sequences + 1],
    ``seqused_k`` [sequences], tokens up to and with the last row, and ``block_table`` [sequences, num_columns].
    """

    token_ids: Any
    positions: Any
    slots: Any
    keep: Any
    cu_seq_q: Any
    cu_seq_k: Any
    seqused_k: Any
    block_table: Any


def unpack(words: Any, layout: Layout, narrow: Any) -> Packing:
    """Return the parts of int64 ``words`` [num_words], a tensor or an array; ``narrow`` is its library's int32."""
    num_rows, n = layout.num_rows, len(layout.owned)
    wide, rest = words[: 4 * num_rows].reshape(4, num_rows), words[4 * num_rows :].view(narrow)
    used, table = 2 * n + 2, 3 * n + 2
    return Packing(
        token_ids=wide[0],
        positions=wide[1],
        slots=wide[2],
        keep=wide[3],
        cu_seq_q=rest[: n + 1],
        cu_seq_k=rest[n + 1 : used],
        seqused_k=rest[used:table],
        block_table=rest[table : table + n * layout.num_columns].reshape(n, layout.num_columns),
    )


def pack(
    batch: Sequence[Rows], layout: Layout, page_size: int, scratch_page: int, pinned: bool
) -> tuple[torch.Tensor, int]:
    """Return words of ``layout`` on the host that hold ``batch``, and how many of ``keep`` count.

    The memory is new each time: an earlier copy to the device may still be reading its own.
    """
    words = torch.empty(layout.num_words, dtype=torch.int64, pin_memory=pinned)
    parts = unpack(words.numpy(), layout, np.int32)
    for part in (parts.token_ids, parts.positions, parts.keep):
        part.fill(0)
    parts.slots.fill(scratch_page * page_size)
    parts.block_table.fill(scratch_page)
    _boundaries(parts.cu_seq_q, np.array(layout.owned))
    # Of a sequence that is not used: one token, of which nothing is new.
    starts, ends = np.ones((2, len(layout.owned)), dtype=np.int64)
    num_kept = 0
    for i, (sequence, num_rows, num_logits) in enumerate(batch):
        starts[i], ends[i] = sequence.num_cached, sequence.num_cached + num_rows
        last = parts.cu_seq_q[i + 1]
        parts.token_ids[last - num_rows : last] = sequence.token_ids[starts[i] : ends[i]]
        parts.block_table[i, : len(sequence.block_table)] = sequence.block_table
        parts.keep[num_kept : num_kept + num_logits] = np.arange(last - num_logits, last)
        num_kept += num_logits
    parts.seqused_k[:] = ends
    _boundaries(parts.cu_seq_k, ends)
    _place(parts, layout, starts, page_size, scratch_page)
    return words, num_kept


def _boundaries(cumulative: Any, sizes: Any) -> None:
    cumulative[0] = 0
    np.cumsum(sizes, out=cumulative[1:])


def _place(parts: Packing, layout: Layout, starts: Any, page_size: int, scratch_page: int) -> None:
    """Write every row's position and slot. Padding before a sequence's first token stands at position 0."""
    owner = np.repeat(np.arange(len(layout.owned)), layout.owned)
    positions, own_slots = parts.positions[: len(owner)], parts.slots[: len(owner)]
    places = parts.seqused_k[owner] - parts.cu_seq_q[1:][owner] + np.arange(len(owner))
    np.maximum(places, 0, out=positions)
    pages = parts.block_table[owner, positions // page_size].astype(np.int64)
    slots = pages * page_size + positions % page_size
    own_slots[:] = np.where(places >= starts[owner], slots, scratch_page * page_size)
