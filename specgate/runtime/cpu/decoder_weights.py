"""A decoder of Llama's form as C reads it: where its weights are, and how its heads are turned."""

from typing import cast

import torch

from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.native_calls import Decoder, Layer, Matrix
from specgate.runtime.cpu.packing import panels_of
from specgate.runtime.decoder_form import DecoderForm, LayerForm, Norm, NotOfThisForm, angles_of
from specgate.runtime.stored_weights import weight_of

FIRST_POSITIONS = 1024
"""For how many positions angles are known at first; then for twice as many, and so on."""


class DecoderWeights:
    """The structures of a model whose products were packed. They are good for as long as this and the model are kept.

    Attributes:
        layers: one each; the kernel writes the addresses of pages into them.

    Raises:
        NotOfThisForm: not all products are packed, or the MLPs are of several widths.
    """

    def __init__(self, form: DecoderForm) -> None:
        self._kept: list[torch.Tensor] = []
        self.layers = (Layer * len(form.layers))(*map(self._layer, form.layers))
        self.decoder = self._whole(form)
        self._floats = [native_calls.scratch_floats(self.decoder, *numbers) for numbers in ((1, 0), (0, 1))]

    def scratch_floats(self, num_rows: int, num_kept: int) -> int:
        """Return how many numbers a forward of so many rows writes beside its results."""
        return num_rows * self._floats[0] + num_kept * self._floats[1]

    def _whole(self, form: DecoderForm) -> Decoder:
        panels = panels_of(form.embedding)
        # (Codes are always in panels.)
        table = None if panels else cast(torch.Tensor, weight_of(form.embedding)).contiguous()
        if table is not None:
            self._kept.append(table)
        mlp_widths = {layer.mlp.gate.out_features for layer in form.layers if layer.mlp} or {0}
        if len(mlp_widths) > 1:
            raise NotOfThisForm("its MLPs are of several widths")
        return Decoder(
            self.layers, len(form.layers), form.embedding.num_embeddings, form.embedding.embedding_dim, form.heads,
            form.kv_heads, form.head_dim, mlp_widths.pop(), 0, form.scale, form.epsilon,
            None if table is None else table.data_ptr(), table is not None and table.dtype is torch.bfloat16,
            self._norm(form.final_norm), self._matrix(form.head), panels.matrix if panels else Matrix(),
        )  # fmt: skip

    def _layer(self, form: LayerForm) -> Layer:
        attention, mlp = form.attention, form.mlp
        layer = Layer(has_attention=attention is not None, has_mlp=mlp is not None)
        layer.attention_norm, layer.mlp_norm = self._norm(form.attention_norm), self._norm(form.mlp_norm)
        if attention:
            layer.query, layer.key, layer.value = map(self._matrix, (attention.query, attention.key, attention.value))
            layer.attention_out = self._matrix(attention.out)
            layer.query_norm, layer.key_norm = self._norm(attention.query_norm), self._norm(attention.key_norm)
            layer.window = attention.window
        if mlp:
            layer.gate, layer.up, layer.down = map(self._matrix, (mlp.gate, mlp.up, mlp.down))
        return layer

    def _matrix(self, layer: torch.nn.Linear) -> Matrix:
        panels = panels_of(layer)
        if panels is None:
            raise NotOfThisForm("not all of its products are packed")
        return panels.matrix

    def _norm(self, norm: Norm | None) -> int | None:
        if norm is None:
            return None
        weight = norm.weight.detach().float().contiguous()
        self._kept.append(weight)
        return weight.data_ptr()


class Angles:
    """Cosines and sines, see ``angles_of``, for as many positions as were asked for so far."""

    def __init__(self, form: DecoderForm, context_length: int) -> None:
        self._form, self._most = form, context_length
        self._cosines = self._sines = torch.empty(0)
        self.up_to(1)

    def up_to(self, num_positions: int) -> tuple[int, int, int]:
        """Return how long both tables are, at least so long or as the context is, and their addresses."""
        wanted = min(num_positions, self._most)
        if wanted > len(self._cosines):
            length = FIRST_POSITIONS
            while length < wanted:
                length *= 2
            self._cosines, self._sines = angles_of(self._form, min(length, self._most))
        return len(self._cosines), self._cosines.data_ptr(), self._sines.data_ptr()
