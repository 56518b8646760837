"""Linear layers for a few rows at a time, on the CPU in float32.

A verification multiplies each weight matrix with γ + 1 rows. torch's product for that shape repacks the whole matrix
in every call, which costs more than the arithmetic; turned around, weight times rows, it does not. Measured on the
12 layers of the bundled target at 4 rows, one core: 4.1 ms instead of 6.5 ms. Weights stay as they are, the numbers
are the same up to float32 rounding, and the self-check that ends every load looks at this very path.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

NARROW = range(2, 9)
"""Numbers of rows for which the turned product was the faster one."""
TWIN_BYTES = 8 << 20
"""A model of more linear weights than this, which no core's own cache holds, multiplies a lone row twice."""


def narrow_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor, twin: bool = False
) -> torch.Tensor:
    """Return ``F.linear(rows, weight, bias)`` of rows [..., in_features]: [..., out_features].

    Args:
        twin: run a lone row as two equal ones. torch's matrix-vector product waits for memory where its matrix
            product reads ahead: 6.8 instead of 7.7 ms for the bundled target, but 1.07 instead of 0.95 ms for the
            draft, which lies in the cache.
    """
    out_features, in_features = weight.shape
    num_rows = rows.numel() // in_features
    lone = twin and num_rows == 1
    if not lone and num_rows not in NARROW:
        return F.linear(rows, weight, bias)
    columns = rows.reshape(-1, in_features)
    # cat, because repeat takes as long as the product itself.
    columns = (torch.cat((columns, columns)) if lone else columns).t()
    out = torch.mm(weight, columns).t()[:num_rows].contiguous()
    if bias is not None:
        out += bias
    return out.view(*rows.shape[:-1], out_features)


def speed_up_narrow_rows(model: nn.Module) -> None:
    """Let every plain linear layer of a float32 model on the CPU take the faster product; others are left alone."""
    first = next(model.parameters())
    if first.device.type != "cpu" or first.dtype is not torch.float32:
        return
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    twin = sum(layer.weight.nbytes for layer in layers) > TWIN_BYTES
    for layer in layers:
        layer.forward = partial(narrow_linear, layer.weight, layer.bias, twin=twin)  # type: ignore[method-assign]
