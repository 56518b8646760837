"""What the kernels of a draft are compiled for, and which decoders they can run."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from specgate.runtime.decoder_form import DecoderForm, LayerForm, NotOfThisForm

MOST_COLUMNS = 2048
"""Of a product: a tile's rows must lie in registers whole."""
MOST_STEPS = 16
"""Tokens of a draft. Logits of all of them are kept: 25 MB for a vocabulary of 49,152."""
MOST_SEQUENCES = 8
FREE_ROWS = 16
"""Of a product by matrix units, which attention is: fewer take as long."""
LEAST_DIM = 16
"""What a matrix unit multiplies at once."""


class DecoderShape(NamedTuple):
    """Sizes. A sequence owns ``WIDTH`` rows, and the last of them are used; ``COLUMNS`` are pages of a sequence."""

    HIDDEN: int
    HEADS: int
    KV_HEADS: int
    DIM: int
    FFN: int
    LAYERS: int
    VOCAB: int
    EPSILON: float
    SCALE: float
    PAGE: int
    COLUMNS: int
    SEQUENCES: int
    WIDTH: int

    @property
    def num_rows(self) -> int:
        return self.SEQUENCES * self.WIDTH


class DraftTiles(NamedTuple):
    """Outputs of a tile by phase (``QKV`` and ``GATE`` count pairs), keys of a block, and parts that keys fall into.

    ``CHOICE`` are scores that are compared at once, ``PROGRAMS`` how many programs there may be, a power of 2.
    """

    QKV: int = 8
    OUT: int = 8
    GATE: int = 8
    DOWN: int = 8
    HEAD: int = 8
    KEYS: int = 64
    PARTS: int = 8
    CHOICE: int = 512
    PROGRAMS: int = 256


def shape_of(form: DecoderForm, page_size: int, num_columns: int, dtypes: Iterable[torch.dtype]) -> DecoderShape:
    """Return the shape of a decoder.

    Args:
        num_columns: pages of the longest sequence.
        dtypes: number formats that may serve.

    Raises:
        NotOfThisForm: our kernels do not compute it.
    """
    ffn = {_ffn_of(layer) for layer in form.layers}
    if len(ffn) > 1:
        raise NotOfThisForm("its MLPs are of several widths")
    weights = [parameter.weight for layer in form.layers for parameter in linears_of(layer)]
    formats = {weight.dtype for weight in (form.embedding.weight, form.head.weight, *weights)}
    if len(formats) > 1 or not formats <= {*dtypes}:
        raise NotOfThisForm(f"its weights are in {', '.join(sorted(map(str, formats)))}")
    if form.head_dim < LEAST_DIM or form.head_dim != _power_of_2(form.head_dim):
        raise NotOfThisForm(f"heads have {form.head_dim} numbers, which is no power of 2 from {LEAST_DIM} on")
    shape = DecoderShape(
        HIDDEN=form.embedding.embedding_dim,
        HEADS=form.heads,
        KV_HEADS=form.kv_heads,
        DIM=form.head_dim,
        FFN=ffn.pop(),
        LAYERS=len(form.layers),
        VOCAB=form.embedding.num_embeddings,
        EPSILON=form.epsilon,
        SCALE=form.scale,
        PAGE=page_size,
        COLUMNS=num_columns,
        SEQUENCES=MOST_SEQUENCES,
        # A draft of which all was accepted brings two rows. More are free as long as attention's fit into one tile.
        WIDTH=max(2, min(8, FREE_ROWS * form.kv_heads // form.heads)),
    )
    widest = max(shape.HIDDEN, shape.FFN, _power_of_2(shape.HEADS) * shape.DIM)
    if widest > MOST_COLUMNS:
        raise NotOfThisForm(f"products of {widest} columns, of {MOST_COLUMNS} at the most")
    return shape


def linears_of(layer: LayerForm) -> list[torch.nn.Linear]:
    """Return all products of a layer, those of one input side by side: q, k, v, out, gate, up, down.

    Raises:
        NotOfThisForm: our kernels do not compute this layer.
    """
    attention, mlp = layer.attention, layer.mlp
    if attention is None or mlp is None:
        raise NotOfThisForm("a block is left out")
    if attention.window:
        raise NotOfThisForm("its attention has a window")
    if attention.query_norm or attention.key_norm:
        raise NotOfThisForm("it norms each head")
    linears = [attention.query, attention.key, attention.value, attention.out, mlp.gate, mlp.up, mlp.down]
    if any(linear.bias is not None for linear in linears):
        raise NotOfThisForm("its products have biases")
    return linears


def _ffn_of(layer: LayerForm) -> int:
    return linears_of(layer)[-1].in_features


def _power_of_2(number: int) -> int:
    """Return the least power of 2 that is no less."""
    return 1 << (number - 1).bit_length()
