"""Forwards of at most 16 rows of a decoder of Llama's form, in five kernels a layer; all others as before.

A row's bits depend on its own prefix alone: not on how many rows, sequences or drafts share its forward.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from specgate.runtime.attention.interface import Forward, Inputs
from specgate.runtime.attention.packing import Packing
from specgate.runtime.attention.varlen import VarlenBatch
from specgate.runtime.cuda.graphs import FEW_ROWS
from specgate.runtime.cuda.joined import joined_weight
from specgate.runtime.decoder_form import AttentionForm, DecoderForm, MlpForm, Norm, NotOfThisForm, form_of
from specgate.runtime.loading import LoadedModel


class AttentionWeights(NamedTuple):
    """``qkv`` [(heads + 2 * kv_heads) * head_dim, width], ``out`` [width, heads * head_dim]."""

    qkv: torch.Tensor
    query_norm: Norm | None
    key_norm: Norm | None
    out: torch.Tensor


class MlpWeights(NamedTuple):
    """``gate_up`` [2 * inner, width], ``down`` [width, inner]."""

    gate_up: torch.Tensor
    down: torch.Tensor


class Kernels(Protocol):
    """One kernel a method, on buffers of its own.

    ``rows``, int32 [1], says on the device how many rows count. ``gain`` is the weight of the norm that follows.
    """

    def embed(
        self, token_ids: torch.Tensor, embedding: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor
    ) -> object: ...

    def rotate(
        self, weights: AttentionWeights, parts: Packing, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor
    ) -> object: ...

    def attend(self, parts: Packing, keys: torch.Tensor, values: torch.Tensor) -> object: ...

    def add_attended(self, weight: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object: ...

    def gate(self, weights: MlpWeights, rows: torch.Tensor) -> object: ...

    def add_gated(self, weight: torch.Tensor, gain: torch.Tensor, rows: torch.Tensor) -> object: ...

    def head(self, weight: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> object: ...


MakeKernels = Callable[[DecoderForm, int, torch.dtype], Kernels]
"""Makes the kernels of a form, for so many positions, in a number format."""


class FewRows:
    """See ``attention.Forward``. Not thread-safe.

    Args:
        loaded: the model, whose layers' weights of the same input become one matrix.
        otherwise: for more rows, and until the pages are there.

    Raises:
        NotOfThisForm: the kernels have no place for what the model does.
    """

    def __init__(self, loaded: LoadedModel, otherwise: Forward, make_kernels: MakeKernels) -> None:
        self._form, self.otherwise = form_of(loaded.model), otherwise
        _refuse(self._form, loaded)
        self._head = self._form.head.weight[: loaded.vocab_size]
        self._blocks: list[AttentionWeights | MlpWeights] = []
        self._gains: list[torch.Tensor] = []
        for layer in self._form.layers:
            if layer.attention:
                self._blocks.append(_attention_weights(layer.attention))
                self._gains.append(layer.attention_norm.weight)
            if layer.mlp:
                self._blocks.append(_mlp_weights(layer.mlp))
                self._gains.append(layer.mlp_norm.weight)
        self._gains.append(self._form.final_norm.weight)
        self._num_attending = sum(isinstance(block, AttentionWeights) for block in self._blocks)
        self._kernels = make_kernels(self._form, loaded.context_length, loaded.dtype)

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits of the rows to keep, [rows, vocabulary], in the model's dtype."""
        ragged, kernels = inputs.ragged, self._kernels
        if not isinstance(ragged, VarlenBatch) or len(inputs.token_ids) > FEW_ROWS:
            return self.otherwise(inputs)
        if len(ragged.pages.layers) != self._num_attending:
            return self.otherwise(inputs)
        parts = ragged.parts
        # Rows behind these are a graph's padding, which belongs to no sequence.
        rows = parts.cu_seq_q[-1:]
        kernels.embed(inputs.token_ids, self._form.embedding.weight, self._gains[0], rows)
        pages = iter(ragged.pages.layers.values())
        for block, gain in zip(self._blocks, self._gains[1:], strict=True):
            if isinstance(block, AttentionWeights):
                keys, values = next(pages)
                kernels.rotate(block, parts, keys, values, rows)
                kernels.attend(parts, keys, values)
                kernels.add_attended(block.out, gain, rows)
            else:
                kernels.gate(block, rows)
                kernels.add_gated(block.down, gain, rows)
        ragged.num_calls += self._num_attending
        return self._logits(inputs, rows)

    def _logits(self, inputs: Inputs, rows: torch.Tensor) -> torch.Tensor:
        keep = inputs.keep
        logits = self._head.new_empty(len(inputs.token_ids), len(self._head))
        if keep is not None and not len(keep):
            return logits[:0]
        self._kernels.head(self._head, rows, logits)
        return logits if keep is None else logits[keep]


def _refuse(form: DecoderForm, loaded: LoadedModel) -> None:
    linears = [form.head]
    for attention in (layer.attention for layer in form.layers):
        if attention:
            linears += [attention.query, attention.key, attention.value, attention.out]
            _refuse_attention(attention)
    for mlp in (layer.mlp for layer in form.layers):
        linears += [mlp.gate, mlp.up, mlp.down] if mlp else []
    tensors = [form.embedding.weight, *(linear.weight for linear in linears)]
    if any(linear.bias is not None for linear in linears):
        raise NotOfThisForm("its products have a bias")
    if not all(one.dtype == loaded.dtype and one.is_contiguous() for one in tensors):
        raise NotOfThisForm("its weights are of several number formats, or do not lie together")
    if loaded.dtype is torch.float16:
        raise NotOfThisForm("float16 has no room for rows that are not normed yet")
    if loaded.dtype is torch.float32 and loaded.device.type == "cuda":
        raise NotOfThisForm("float32 is multiplied without matrix units")


def _refuse_attention(attention: AttentionForm) -> None:
    half = attention.head_dim // 2
    if attention.window:
        raise NotOfThisForm(f"a layer sees {attention.window} tokens alone")
    if (attention.query_norm is None) != (attention.key_norm is None):
        raise NotOfThisForm("it norms queries or keys alone")
    if attention.query_norm and half & (half - 1):
        raise NotOfThisForm(f"it norms heads of {attention.head_dim} numbers, which is no power of two")


def _attention_weights(form: AttentionForm) -> AttentionWeights:
    qkv = joined_weight([form.query, form.key, form.value])
    return AttentionWeights(qkv, form.query_norm, form.key_norm, form.out.weight)


def _mlp_weights(form: MlpForm) -> MlpWeights:
    return MlpWeights(joined_weight([form.gate, form.up]), form.down.weight)
