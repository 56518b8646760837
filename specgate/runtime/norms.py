"""Root-mean-square norms as one operation of torch's: on a GPU, and on the CPU in float32.

Models write this norm as six operations, and a decoder layer has two of them. With a row or a few each operation takes
as long as calling it: 25 norms of the bundled target's width take 0.35 ms instead of 0.5 on one core, of the 6 ms of
its forward. On a GPU each is a kernel: a forward of SmolLM2-1.7B's shape takes 663 kernels instead of 1,124, with the
fused attention. What a model's norm computes is not guessed by its name: it is compared with torch's on numbers of all
sizes, and left alone where it is another one (Gemma's adds 1 to its weight). The self-check that ends every load looks
at this very path.
"""

import inspect
import logging
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from specgate.errors import reason_of
from specgate.runtime.cpu.packing import is_float32_on_cpu
from specgate.runtime.decoder_form import NotOfThisForm, norm_of

_log = logging.getLogger(__name__)

TOLERANCE = 1e-6
"""Relative: float32 rounds to 6e-8. Shorter formats have two roundings: models round once more than torch does."""
_SCALES = (1e-6, 1e-3, 1.0, 1e3)


def fuse_norms(model: nn.Module) -> None:
    """Let every norm that computes what torch's does be torch's, where that is faster, and no other one."""
    if not is_float32_on_cpu(model) and next(model.parameters()).device.type != "cuda":
        return
    for module in model.modules():
        fused = _fused(module)
        if fused is not None and _same(fused, module):
            module.forward = fused


def _fused(module: nn.Module) -> "partial[torch.Tensor] | None":
    """Return torch's norm in place of one that has a weight and an epsilon and nothing else; None for other modules."""
    try:
        norm = norm_of(module)
    except NotOfThisForm:
        return None
    if len(inspect.signature(module.forward).parameters) != 1:
        return None
    return partial(F.rms_norm, normalized_shape=list(norm.weight.shape), weight=norm.weight, eps=norm.epsilon)


@torch.inference_mode()
def _same(fused: "partial[torch.Tensor]", module: nn.Module) -> bool:
    weight = fused.keywords["weight"]
    width = len(weight)
    # Not around 0: a norm that takes the mean off must show.
    wave = torch.arange(4 * width).sin().add(0.5).view(1, 4, width)
    rows = (wave * torch.tensor(_SCALES).view(1, 4, 1)).to(weight)
    try:
        expected = module(rows)
    # A module with these attributes may be anything, and want what we do not know.
    except Exception as error:
        _log.debug("%s is no norm of rows: %s", type(module).__name__, reason_of(error))
        return False
    if not isinstance(expected, torch.Tensor) or (expected.shape, expected.dtype) != (rows.shape, rows.dtype):
        return False
    tolerance = max(TOLERANCE, 2 * torch.finfo(rows.dtype).eps)
    return torch.allclose(fused(rows), expected, rtol=tolerance, atol=1e-9)
