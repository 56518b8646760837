"""A decoder's weights as stacks of all layers: one kernel finds each layer's by a number."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from specgate.runtime.cuda.decoder.shape import linears_of
from specgate.runtime.decoder_form import DecoderForm, LayerForm, angles_of

_PRODUCTS = (slice(0, 3), slice(3, 4), slice(4, 6), slice(6, 7))
"""Of ``linears_of``: which lie side by side in a layer, q, k, v; out; gate, up; down."""


class StackedWeights(NamedTuple):
    """``qkv``, ``out``, ``gate_up`` and ``down`` [layers, out, in], ``norms`` [layers, 2, hidden], before attention and
    before the MLP; ``embedding`` and ``head`` [vocabulary, hidden], ``last_norm`` [hidden]; ``angles`` float32
    [positions, 2, head_dim / 2], cosines and sines.
    """

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norms: torch.Tensor
    embedding: torch.Tensor
    last_norm: torch.Tensor
    head: torch.Tensor
    angles: torch.Tensor


@torch.no_grad()
def stack_weights(form: DecoderForm, context_length: int) -> StackedWeights:
    """Return the weights of a decoder that has a ``DecoderShape``. The model's own parameters become parts of them.

    So memory does not double: one kind of products after the other is moved, and each layer's old place given back.

    Raises:
        NotOfThisForm: see ``angles_of``.
    """
    angles = torch.stack(angles_of(form, context_length), 1).contiguous()
    qkv, out, gate_up, down = (_stacked([linears_of(layer)[part] for layer in form.layers]) for part in _PRODUCTS)
    if angles.device.type == "cuda":
        torch.cuda.empty_cache()
    return StackedWeights(
        qkv,
        out,
        gate_up,
        down,
        torch.stack([_norms_of(layer) for layer in form.layers]),
        form.embedding.weight.detach().contiguous(),
        form.final_norm.weight.detach(),
        form.head.weight.detach().contiguous(),
        angles,
    )


def _stacked(layers: Sequence[Sequence[nn.Linear]]) -> torch.Tensor:
    weight, rows = layers[0][0].weight, sum(linear.out_features for linear in layers[0])
    stack = weight.new_empty(len(layers), rows, weight.shape[1])
    for linears, place in zip(layers, stack, strict=True):
        for linear, part in _parts(linears, place):
            part.copy_(linear.weight)
            linear.weight = nn.Parameter(part, requires_grad=False)
    return stack


def _parts(linears: Sequence[nn.Linear], place: torch.Tensor) -> Iterable[tuple[nn.Linear, torch.Tensor]]:
    return zip(linears, place.split([linear.out_features for linear in linears]), strict=True)


def _norms_of(layer: LayerForm) -> torch.Tensor:
    return torch.stack([layer.attention_norm.weight.detach(), layer.mlp_norm.weight.detach()])
