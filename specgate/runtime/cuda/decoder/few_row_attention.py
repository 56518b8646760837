"""Attention of up to 16 rows in one kernel, whose bits depend on a row's own prefix alone.

Which part a block of keys belongs to follows from its position, and how many rows of a matrix unit a program has from
the model: neither from lengths, nor from how many rows and sequences there are.
"""

import torch
import triton

from specgate.runtime.attention.packing import Packing
from specgate.runtime.attention.paged_triton import attend, blocks_for
from specgate.runtime.cuda.graphs import FEW_ROWS
from specgate.runtime.decoder_form import DecoderForm

FEWEST_PARTS, MOST_PARTS = 4, 16
"""Of keys, by turns. More take longer to put together than they save, up to some thousand tokens."""


class FewRowAttention:
    """Not thread-safe: what parts leave to each other lies in one place.

    Args:
        programs: as many parts have one sequence's key heads together, about.
    """

    def __init__(self, form: DecoderForm, dtype: torch.dtype, programs: int) -> None:
        device = form.embedding.weight.device
        self._form = form
        self._group = form.heads // form.kv_heads
        self._width = max(16, triton.next_power_of_2(form.head_dim))
        sizes = blocks_for(dtype, self._width)
        self._keys, self._rows = sizes.keys, min(sizes.max_rows, triton.next_power_of_2(FEW_ROWS * self._group))
        self._blocks = triton.cdiv(FEW_ROWS * self._group, self._rows)
        self._parts = min(MOST_PARTS, max(FEWEST_PARTS, triton.next_power_of_2(programs // form.kv_heads)))
        self._shared = torch.empty(self._parts, FEW_ROWS, form.heads, self._width + 4, device=device)
        self._arrivals = torch.zeros(self._blocks * form.kv_heads * FEW_ROWS, dtype=torch.int32, device=device)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, parts: Packing, out: torch.Tensor
    ) -> object:
        """Write what the rows attend to into ``out``; return what Triton tells of the kernel.

        Args:
            query, out: [16, heads * head_dim]; as many rows count as the packing's sequences own.
            keys, values: [pages, page_size, kv_heads, head_dim].
        """
        heads, kv_heads, dim = self._form.heads, self._form.kv_heads, self._form.head_dim
        return attend[(self._blocks * self._parts, kv_heads, len(parts.block_table))](
            query, keys, values, out, parts.cu_seq_q, parts.seqused_k, parts.block_table, self._shared, self._arrivals,
            self._form.scale, 0.0, -1, heads * dim, dim, kv_heads * dim, dim, parts.block_table.stride(0), FEW_ROWS,
            GROUP=self._group, PAGE=keys.shape[1], DIM=dim, WIDTH=self._width, ROWS=self._rows, KEYS=self._keys,
            PARTS=self._parts, PART_KEYS=0, WINDOWED=False, CAPPED=False, DEALT=True,
        )  # fmt: skip
