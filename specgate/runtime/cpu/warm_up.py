"""Products that torch compiles when it first meets a number of rows: met before anybody waits for them.

On the CPU oneDNN makes one for each shape of weights and number of rows. All shapes of a small model take 10 to 15 ms,
where its forward takes 6 (bfloat16; in float32 it does so for a few shapes). A verification of five rows would wait for
that in the middle of somebody's text, and so would a draft.
"""

import time

import torch
from torch import nn

from specgate.runtime.cpu.packing import panels_of
from specgate.runtime.loading import Progress

MOST_ROWS = 32
"""A few sessions' verifications together. Wider ones are met when they come."""
BUDGET_S = 2.0
"""A large model's products take long by themselves; then the rest is met when it comes."""


@torch.inference_mode()
def warm_up(model: nn.Module, progress: Progress, budget_s: float = BUDGET_S) -> None:
    """Run one plain linear layer of every shape on 1 to ``MOST_ROWS`` rows; those on other devices are left alone."""
    plain = [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu" and panels_of(layer) is None
    ]
    layers = {(layer.weight.shape, layer.weight.dtype, layer.bias is not None): layer for layer in plain}
    progress("warm-up", 0, 1)
    end_s = time.monotonic() + budget_s
    for num_rows in range(1, MOST_ROWS + 1):
        for layer in layers.values():
            if time.monotonic() < end_s:
                layer(torch.ones(1, num_rows, layer.in_features, dtype=layer.weight.dtype))
    progress("warm-up", 1, 1)
