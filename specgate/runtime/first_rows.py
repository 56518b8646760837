"""Kernels that torch makes when it first meets a matrix with a number of rows: made before anybody waits for them.

On the CPU oneDNN compiles a product for each shape, 10 to 15 ms for all of a small model's in bfloat16 where running it
takes three. A verification of five rows would wait for that in the middle of somebody's text, and so would a draft.
"""

import torch
from torch import nn

from specgate.runtime.loading import Progress

MOST_ROWS = 32
"""Some sessions' verifications together; wider ones are long enough for it not to matter."""


@torch.inference_mode()
def meet_rows(model: nn.Module, progress: Progress) -> None:
    """Run one plain linear layer of every shape on 1 to ``MOST_ROWS`` rows; models on other devices are left alone."""
    layers = {_shape(layer): layer for layer in model.modules() if type(layer) is nn.Linear}
    if not layers or next(model.parameters()).device.type != "cpu":
        return
    progress("kernels", 0, 1)
    for num_rows in range(1, MOST_ROWS + 1):
        for layer in layers.values():
            layer(torch.ones(1, num_rows, layer.in_features, dtype=layer.weight.dtype))
    progress("kernels", 1, 1)


def _shape(layer: nn.Linear) -> tuple[torch.Size, bool]:
    return layer.weight.shape, layer.bias is not None
