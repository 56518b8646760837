"""Linear layers of the same input as one matrix."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


@torch.no_grad()
def joined_weight(layers: Sequence[nn.Linear]) -> torch.Tensor:
    """Return the layers' weights one below the other, [their outputs, inputs], of which they become parts.

    Where they are that already, it is the matrix that they lie in: nothing is copied, and no memory is taken twice.
    """
    weights = [layer.weight for layer in layers]
    num_rows, width = sum(map(len, weights)), weights[0].shape[1]
    if all(_follows(one, other) for one, other in pairwise(weights)):
        return weights[0].detach().as_strided((num_rows, width), (width, 1))
    joined = torch.cat(weights)
    for layer, part in zip(layers, joined.split([len(weight) for weight in weights]), strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)
    return joined


def _follows(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether ``other`` begins where ``one`` ends, both without gaps."""
    return (
        one.is_contiguous()
        and other.is_contiguous()
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and one.storage_offset() + one.numel() == other.storage_offset()
    )
