"""Weights in memory as their files have them, with arithmetic in float32: the numbers of float32, in fewer bytes.

Nearly all checkpoints are in bfloat16, each of whose numbers float32 has too, and those of llama.cpp in codes. So what
a product or an embedding reads may stay short, and everything else, the norms and biases, becomes float32, which is
small. Modules that look at the type of a layer's weight see float32.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn

WIDENED_NUMBERS = 1 << 22
"""How many of a weight's numbers are float32 at a time."""


class Codes(NamedTuple):
    """A weight [out, in] whose numbers are small whole ones, with a scale for each block of a row's inputs.

    Attributes:
        codes: int8 [out, in]; with 4 bits they are 0 to 15.
        scales: float32 [out, in / block].
        offsets: the same, or None. A code stands for code * scale + offset.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    bits: int

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.codes.dtype

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def block(self) -> int:
        """Inputs of a block."""
        return self.codes.shape[-1] // self.scales.shape[-1]

    def numel(self) -> int:
        return self.codes.numel()

    def data_ptr(self) -> int:
        return self.codes.data_ptr()

    def numbers(self, rows: Any = slice(None)) -> torch.Tensor:
        """Return rows as float32 [..., in]; ``rows`` is an index of the first dimension."""
        scaled = self.codes[rows].unflatten(-1, (-1, self.block)) * self.scales[rows].unsqueeze(-1)
        if self.offsets is not None:
            scaled += self.offsets[rows].unsqueeze(-1)
        return scaled.flatten(-2)


Weight = torch.Tensor | Codes


def picked(weight: Weight, rows: torch.Tensor) -> Weight:
    """Return these rows of a weight; ``rows`` are int64 [n]."""
    if not isinstance(weight, Codes):
        return weight[rows]
    offsets = None if weight.offsets is None else weight.offsets[rows]
    return Codes(weight.codes[rows], weight.scales[rows], offsets, weight.bits)


def whole(weight: Weight) -> torch.Tensor:
    """Return the numbers of codes in float32, and other weights as they are."""
    return weight.numbers() if isinstance(weight, Codes) else weight


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer may keep its weight as it is stored."""
    return type(layer) in (nn.Linear, nn.Embedding) and getattr(layer, "max_norm", None) is None


def keep_short(model: nn.Module) -> bool:
    """Let a bfloat16 model compute in float32; its plain products and embeddings stay as they are.

    False: it was built with numbers that are short though the files do not have them, so they may be rounded ones.
    """
    if any(buffer.is_floating_point() and buffer.dtype is not torch.float32 for buffer in model.buffers()):
        return False
    stand_ins: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if is_plain(module) and name == "weight":
                keep(module, parameter.data, stand_ins.setdefault(id(parameter), stand_in(parameter)))
            else:
                parameter.data = parameter.data.float()
    return True


def keep(layer: Any, weight: Weight, stand_in: nn.Parameter) -> None:
    """Let a plain linear layer or embedding compute in float32 with a weight that stays as it is stored."""
    put_away(layer, weight, stand_in)
    layer.forward = partial(_linear if type(layer) is nn.Linear else _embedded, layer)


def tie(model: Any) -> None:
    """Let the head of a model have the weight of its embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if (stored := vars(embedding).get("stored_weight")) is not None:
        keep(head, stored, embedding.weight)
    else:
        head.weight = embedding.weight


def stand_in(weight: Weight) -> nn.Parameter:
    """Return a float32 weight of the same shape to look at; it is NaN, so that a product with it fails."""
    return nn.Parameter(torch.full((), torch.nan, device=weight.device).expand(weight.shape), requires_grad=False)


def put_away(layer: Any, weight: Weight | None, stand_in: nn.Parameter) -> None:
    """Keep a layer's weight where ``weight_of`` finds it and transformers does not; None: it is kept elsewhere."""
    layer.stored_weight, layer.weight = weight, stand_in


def weight_of(layer: nn.Module) -> Weight:
    """Return the weight of a linear layer or an embedding, as it is stored."""
    return cast(Weight, vars(layer).get("stored_weight", layer.weight))


def _linear(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """``F.linear`` with the weight widened, a part at a time."""
    out = torch.cat([F.linear(rows, part) for part in _widened(weight_of(layer))], -1)
    bias = cast(torch.Tensor | None, layer.bias)
    return out if bias is None else out + bias


def _embedded(layer: nn.Embedding, token_ids: torch.Tensor) -> torch.Tensor:
    weight = weight_of(layer)
    return weight.numbers(token_ids) if isinstance(weight, Codes) else F.embedding(token_ids, weight).float()


def _widened(weight: Weight) -> Iterator[torch.Tensor]:
    each = max(1, WIDENED_NUMBERS // weight.shape[1])
    for first in range(0, weight.shape[0], each):
        rows = slice(first, first + each)
        yield weight.numbers(rows) if isinstance(weight, Codes) else weight[rows].float()
