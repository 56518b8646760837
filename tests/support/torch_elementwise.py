"""What ``specgate.runtime.cuda.elementwise`` computes, in torch: each one operation, as each there is one kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.runtime.attention.varlen import copy_to_slots


@torch.library.custom_op("specgate_tests::rotated", mutates_args=())
def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _turned(query, cos, sin), _turned(key, cos, sin)


@torch.library.custom_op("specgate_tests::silu_times", mutates_args=())
def silu_times(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


@torch.library.custom_op("specgate_tests::add_rms_norm", mutates_args=())
def add_rms_norm(hidden: Tensor, added: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    summed = hidden + added
    return summed, F.rms_norm(summed, weight.shape, weight, epsilon)


@torch.library.custom_op("specgate_tests::store", mutates_args=("key_pages", "value_pages"))
def store(key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, slots: Tensor) -> None:
    copy_to_slots(key, value, key_pages, value_pages, slots)


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = rows.chunk(2, -1)
    turned: Tensor = rows * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
    return turned
