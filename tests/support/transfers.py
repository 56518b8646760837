"""How often work on a device would wait for it, told on a CPU: what is brought to the host, and in how many pieces."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITS = ("_local_scalar_dense", "nonzero", "bincount", "aten.equal", "masked_select")
"""A number read by itself, and results whose shape depends on values."""


class Transfers(TorchDispatchMode):
    """Counts them, inside its ``with``: ``num``."""

    def __enter__(self) -> "Transfers":
        self.num = 0
        self._patch = pytest.MonkeyPatch()
        for name in ("tolist", "cpu"):
            self._patch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.undo()

    def _counted(self, real: Any) -> Any:
        def counted(tensor: torch.Tensor) -> Any:
            self.num += 1
            return real(tensor)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += any(name in str(func) for name in _WAITS)
        return func(*args, **(kwargs or {}))
