"""Launches of the kernels that a forward of up to 16 rows takes, on buffers that stay where they are."""

from typing import NamedTuple

import torch
import triton

from specgate.runtime.attention.packing import Packing
from specgate.runtime.cuda.decoder import products
from specgate.runtime.cuda.decoder.few_row_attention import FewRowAttention
from specgate.runtime.cuda.decoder.few_rows import AttentionWeights, MlpWeights
from specgate.runtime.cuda.graphs import FEW_ROWS
from specgate.runtime.decoder_form import DecoderForm, angles_of


class Tiles(NamedTuple):
    """Outputs of a program, in ``qkv`` and ``gate`` pairs of them; columns that it reads at a time, and ahead.

    ``add`` has its own: it has few outputs, and many columns. ``attend`` is how many programs attend for one sequence:
    two a multiprocessor. All fit cards with 99 KiB of shared memory. Measured on an H200 with SmolLM2-1.7B's shape.
    """

    qkv: int = 32
    gate: int = 32
    head: int = 32
    columns: int = 128
    stages: int = 4
    add: int = 16
    add_columns: int = 256
    add_stages: int = 6
    attend: int = 256


class FewRowKernels:
    """Each method is one kernel; see ``few_rows.Kernels``. Not thread-safe.

    Args:
        context_length: positions that there may be.
    """

    def __init__(self, form: DecoderForm, context_length: int, dtype: torch.dtype, tiles: Tiles | None = None) -> None:
        self._form, self._tiles = form, tiles or Tiles()
        self._loop = {"COLUMNS": self._tiles.columns, "STAGES": self._tiles.stages}
        width, device = form.embedding.embedding_dim, form.embedding.weight.device
        self._width, self._parts = width, triton.cdiv(width, self._tiles.add)
        self._angles = angles_of(form, context_length)
        self._hidden = torch.empty(FEW_ROWS, width, device=device)
        # What a norm's product reads: the stream times the norm's weight, and sums of its squares.
        self._ready = (
            torch.empty(FEW_ROWS, width, dtype=dtype, device=device),
            torch.empty(FEW_ROWS, self._parts, device=device),
        )
        self._query, self._attended = torch.empty(
            2, FEW_ROWS, form.heads * form.head_dim, dtype=dtype, device=device
        ).unbind()
        inner = max((layer.mlp.gate.out_features for layer in form.layers if layer.mlp), default=0)
        self._gated = torch.empty(FEW_ROWS * inner, dtype=dtype, device=device)
        self._attention = FewRowAttention(form, dtype, self._tiles.attend)

    def embed(self, token_ids: torch.Tensor, embedding: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object:
        """Begin the residual stream with rows of ``embedding`` [vocabulary, width]."""
        return products.embedded[(self._parts,)](
            token_ids, embedding, gain, self._hidden, *self._ready, rows, self._width, self._parts, self._tiles.add,
        )  # fmt: skip

    def rotate(
        self, weights: AttentionWeights, parts: Packing, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor
    ) -> object:
        """Make queries, keys and values, turn them, write keys and values into their pages."""
        form, half = self._form, self._form.head_dim // 2
        normed = weights.query_norm is not None
        gains = [norm.weight if norm else weights.qkv for norm in (weights.query_norm, weights.key_norm)]
        block = half if normed else self._tiles.qkv
        return products.rotated[(triton.cdiv((form.heads + 2 * form.kv_heads) * half, block),)](
            *self._ready, weights.qkv, *gains, *self._angles, parts.positions, parts.slots, self._query, keys, values,
            rows, form.epsilon, self._width, form.heads, form.kv_heads, form.head_dim, self._parts, normed, block,
            **self._loop,
        )  # fmt: skip

    def attend(self, parts: Packing, keys: torch.Tensor, values: torch.Tensor) -> object:
        """Attend over pages [pages, page_size, kv_heads, head_dim]."""
        return self._attention(self._query, keys, values, parts, self._attended)

    def add_attended(self, weight: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object:
        """Add attention's output projection to the residual stream."""
        return self._add(self._attended, weight, gain, rows)

    def gate(self, weights: MlpWeights, rows: torch.Tensor) -> object:
        """Make silu of the gate's projection times the other one."""
        inner = len(weights.gate_up) // 2
        return products.gated[(triton.cdiv(inner, self._tiles.gate),)](
            *self._ready, weights.gate_up, self._gated, rows, self._form.epsilon, self._width, inner, self._parts,
            self._tiles.gate, **self._loop,
        )  # fmt: skip

    def add_gated(self, weight: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object:
        """Add the MLP's last projection to the residual stream."""
        return self._add(self._gated, weight, gain, rows)

    def head(self, weight: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> object:
        """Write logits [rows, vocabulary]."""
        return products.plain[(triton.cdiv(len(weight), self._tiles.head),)](
            *self._ready, weight, logits, rows, self._form.epsilon, self._width, len(weight), self._parts,
            self._tiles.head, **self._loop,
        )  # fmt: skip

    def _add(self, x: torch.Tensor, weight: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object:
        return products.added[(self._parts,)](
            x, weight, gain, self._hidden, *self._ready, rows, weight.shape[1], self._width, self._parts,
            self._tiles.add, self._tiles.add_columns, self._tiles.add_stages,
        )  # fmt: skip
