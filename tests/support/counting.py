"""Counts what a forward asks of its device: kernels, reads by the host, copies from and to the host.

Works on ``meta`` tensors, so the path of a GPU can be counted without one: an operation on a meta tensor stands for
one kernel, unless it only makes a view or takes memory. What compares numbers as it is set up is counted on the CPU.
"""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NO_KERNEL = frozenset(
    {
        "_unsafe_view", "alias", "as_strided", "chunk", "detach", "device", "empty", "empty_like", "empty_strided",
        "expand", "flatten", "is_same_size", "lift_fresh", "linear_view", "narrow", "new_empty", "new_empty_strided",
        "numpy_T", "permute", "prim", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
        "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
HOST_READS = frozenset(
    {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique_consecutive", "_unique2"}
)
COPIES = frozenset({"_copy_from", "_to_copy", "copy_", "to"})


class LaunchCount(TorchDispatchMode):
    """Counts while it is entered.

    Args:
        device: stands for the GPU.

    Attributes:
        kernels: how often each operation ran on the device.
        host_reads: operations for which a host waits for the device, copies that block among them.
        transfers: how many copies between host and device do not block.
    """

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.kernels: Counter[str] = Counter()
        self.host_reads: list[str] = []
        self.transfers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        devices = {x.device.type for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)}
        if self._device in devices and name not in NO_KERNEL:
            self.kernels[name] += 1
        if name in HOST_READS:
            self.host_reads.append(name)
        if name in COPIES and len(devices) > 1:
            names = [argument.name for argument in func._schema.arguments]
            self._count_copy(name, {**dict(zip(names, args, strict=False)), **(kwargs or {})})
        return out

    def _count_copy(self, name: str, arguments: dict[str, Any]) -> None:
        if arguments.get("non_blocking"):
            self.transfers += 1
        else:
            self.host_reads.append(name)
