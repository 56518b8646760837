"""Weights in memory as their files have them, with arithmetic in float32: the numbers of float32, at half the bytes.

Nearly all checkpoints are in bfloat16, each of whose numbers float32 has too. So what a product or an embedding reads
may stay short, and everything else, the norms and biases, becomes float32, which is small. Modules that look at the
type of a layer's weight see float32.
"""

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

WIDENED_NUMBERS = 1 << 22
"""How many of a weight's numbers are float32 at a time."""


def keep_short(model: nn.Module) -> bool:
    """Let a bfloat16 model compute in float32; its plain products and embeddings stay as they are.

    False: it was built with numbers that are short though the files do not have them, so they may be rounded ones.
    """
    if any(buffer.is_floating_point() and buffer.dtype is not torch.float32 for buffer in model.buffers()):
        return False
    stand_ins: dict[int, nn.Parameter] = {}
    for module in model.modules():
        is_plain = type(module) in (nn.Linear, nn.Embedding) and getattr(module, "max_norm", None) is None
        for name, parameter in list(module.named_parameters(recurse=False)):
            if is_plain and name == "weight":
                layer = cast(Any, module)
                put_away(layer, parameter.data, stand_ins.setdefault(id(parameter), stand_in(parameter)))
                layer.forward = partial(_linear if type(module) is nn.Linear else _embedded, layer)
            else:
                parameter.data = parameter.data.float()
    return True


def stand_in(weight: torch.Tensor) -> nn.Parameter:
    """Return a float32 weight of the same shape to look at; it is NaN, so that a product with it fails."""
    return nn.Parameter(torch.full((), torch.nan, device=weight.device).expand(weight.shape), requires_grad=False)


def put_away(layer: Any, weight: torch.Tensor | None, stand_in: nn.Parameter) -> None:
    """Keep a layer's weight where ``weight_of`` finds it and transformers does not; None: it is kept elsewhere."""
    layer.stored_weight, layer.weight = weight, stand_in


def weight_of(layer: nn.Module) -> torch.Tensor:
    """Return the weight of a linear layer or an embedding, as it is stored."""
    return cast(torch.Tensor, vars(layer).get("stored_weight", layer.weight))


def _linear(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """``F.linear`` with the weight widened, a part at a time."""
    weight = weight_of(layer)
    parts = [F.linear(rows, part.float()) for part in weight.split(max(1, WIDENED_NUMBERS // weight.shape[1]))]
    out = torch.cat(parts, -1)
    bias = cast(torch.Tensor | None, layer.bias)
    return out if bias is None else out + bias


def _embedded(layer: nn.Embedding, token_ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(token_ids, weight_of(layer)).float()
