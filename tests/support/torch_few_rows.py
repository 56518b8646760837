"""What ``FewRowKernels`` computes, in torch: each one operation, as each there is one kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.runtime.attention.packing import Packing
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.cuda.decoder.few_rows import AttentionWeights, MlpWeights
from specgate.runtime.cuda.graphs import FEW_ROWS
from specgate.runtime.decoder_form import DecoderForm, angles_of


@torch.library.custom_op("specgate_tests::embed", mutates_args=("hidden", "normed"))
def _embed(token_ids: Tensor, embedding: Tensor, gain: Tensor, epsilon: float, hidden: Tensor, normed: Tensor) -> None:
    hidden[: len(token_ids)] = embedding[token_ids]
    normed.copy_(F.rms_norm(hidden, gain.shape, gain, epsilon))


@torch.library.custom_op("specgate_tests::rotate", mutates_args=("query", "keys", "values"))
def _rotate(
    normed: Tensor, epsilon: float, weight: Tensor, gains: list[Tensor], angles: list[Tensor], positions: Tensor,
    slots: Tensor, query: Tensor, keys: Tensor, values: Tensor,
) -> None:  # fmt: skip
    num_rows, dim, kv_heads = len(positions), keys.shape[3], keys.shape[2]
    heads = F.linear(normed[:num_rows], weight).view(num_rows, -1, dim)
    sizes = [query.shape[1] // dim, kv_heads, kv_heads]
    parts = list(heads.split(sizes, 1))
    for index, its in enumerate(gains):
        parts[index] = F.rms_norm(parts[index], its.shape, its, epsilon)
    cos, sin = (table[positions][:, None].repeat(1, 1, 2) for table in angles)
    for index in (0, 1):
        first, second = parts[index].chunk(2, -1)
        parts[index] = parts[index] * cos + torch.cat([-second, first], -1) * sin
    query[:num_rows] = parts[0].flatten(1)
    keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots] = parts[1], parts[2]


@torch.library.custom_op("specgate_tests::attend_few", mutates_args=("out",))
def _attend(
    query: Tensor, keys: Tensor, values: Tensor, first_rows: Tensor, lengths: Tensor, table: Tensor, out: Tensor,
    scale: float,
) -> None:  # fmt: skip
    rows = query.view(len(query), -1, keys.shape[3])
    out.copy_(varlen_attention(
        rows, keys, values, first_rows, None, 0, 0, scale=scale, window_size=(-1, 0), enable_gqa=True,
        seqused_k=lengths, block_table=table,
    ).flatten(1))  # fmt: skip


@torch.library.custom_op("specgate_tests::add_product", mutates_args=("hidden", "normed"))
def _add(x: Tensor, weight: Tensor, gain: Tensor, epsilon: float, hidden: Tensor, normed: Tensor) -> None:
    hidden += F.linear(x, weight)
    normed.copy_(F.rms_norm(hidden, gain.shape, gain, epsilon))


@torch.library.custom_op("specgate_tests::gate", mutates_args=("out",))
def _gate(normed: Tensor, weight: Tensor, out: Tensor) -> None:
    gate, up = F.linear(normed, weight).chunk(2, -1)
    out.copy_(F.silu(gate) * up)


@torch.library.custom_op("specgate_tests::head", mutates_args=("logits",))
def _head(normed: Tensor, weight: Tensor, logits: Tensor) -> None:
    logits.copy_(F.linear(normed[: len(logits)], weight))


class TorchFewRowKernels:
    """See ``few_rows.Kernels``."""

    def __init__(self, form: DecoderForm, context_length: int, dtype: torch.dtype) -> None:
        self._form, self._angles = form, list(angles_of(form, context_length))
        self._stream = torch.zeros(2, FEW_ROWS, form.embedding.embedding_dim, dtype=dtype).unbind()
        self._query, self._attended = torch.zeros(2, FEW_ROWS, form.heads * form.head_dim, dtype=dtype).unbind()
        widths = {layer.mlp.gate.out_features for layer in form.layers if layer.mlp}
        self._gated = torch.zeros(FEW_ROWS, *widths, dtype=dtype)

    def embed(self, token_ids: Tensor, embedding: Tensor, gain: Tensor, rows: Tensor) -> None:
        _embed(token_ids, embedding, gain, self._form.epsilon, *self._stream)

    def rotate(self, weights: AttentionWeights, parts: Packing, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        gains = [norm.weight for norm in (weights.query_norm, weights.key_norm) if norm]
        _rotate(
            self._stream[1], self._form.epsilon, weights.qkv, gains, self._angles, parts.positions, parts.slots,
            self._query, keys, values,
        )  # fmt: skip

    def attend(self, parts: Packing, keys: Tensor, values: Tensor) -> None:
        table = parts.cu_seq_q, parts.seqused_k, parts.block_table
        _attend(self._query, keys, values, *table, self._attended, self._form.scale)

    def add_attended(self, weight: Tensor, gain: Tensor, rows: Tensor) -> None:
        _add(self._attended, weight, gain, self._form.epsilon, *self._stream)

    def gate(self, weights: MlpWeights, rows: Tensor) -> None:
        _gate(self._stream[1], weights.gate_up, self._gated)

    def add_gated(self, weight: Tensor, gain: Tensor, rows: Tensor) -> None:
        _add(self._gated, weight, gain, self._form.epsilon, *self._stream)

    def head(self, weight: Tensor, rows: Tensor, logits: Tensor) -> None:
        _head(self._stream[1], weight, logits)
