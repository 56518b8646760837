"""Whether a faster way computes what a model's own module does, on a few rows."""

import logging
from collections.abc import Callable, Sequence

import torch

from specgate.errors import reason_of

_ROUNDINGS = 4
"""By which a result may differ: models round up to three times where we round once."""
_log = logging.getLogger(__name__)


def numbers(width: int, like: torch.Tensor) -> torch.Tensor:
    """Return four rows of numbers that are all different, [1, 4, width], of the device and dtype of ``like``."""
    return torch.arange(4 * width, device=like.device).mul(0.7).sin().to(like.dtype).view(1, 4, width)


@torch.inference_mode()
def are_same(own: Callable[[], Sequence[torch.Tensor]], ours: Callable[[], Sequence[torch.Tensor]]) -> bool:
    """Return whether both compute the same, up to rounding; not where one of them fails."""
    try:
        pairs = list(zip(own(), ours(), strict=True))
        return all(one.shape == other.shape and _is_near(other.float(), one.float(), one.dtype) for one, other in pairs)
    # A module with these names may be anything, answer anything, and a compiler may be missing.
    except Exception as error:
        _log.info("not fused: %s", reason_of(error))
        return False


def _is_near(served: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((served - expected).norm() <= _ROUNDINGS * torch.finfo(dtype).eps * expected.norm())
