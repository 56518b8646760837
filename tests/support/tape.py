"""Graphs without a GPU: a forward is called again, or its operations are recorded and replayed on the same memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.cuda.graphs import Replay

_aten = torch.ops.aten
_READ_ON_THE_HOST = {_aten.item.default, _aten._local_scalar_dense.default, _aten.is_nonzero.default,
                      _aten.nonzero.default, _aten.masked_select.default}  # fmt: skip


class EagerCapturer:
    """Replays by calling the function again: the same buffers and padding where there are no graphs."""

    def capture(self, function: Callable[[], object]) -> Replay:
        """Run once, as a capture does, and return the function itself."""
        function()
        return function


class TapeCapturer:
    """As a CUDA graph: no Python runs in a replay, every operation reads and writes the tensors that it did at capture.

    What would break a capture on the GPU breaks it here: a forward that reads a number, or a shape, on the host.
    """

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, function: Callable[[], object]) -> Replay:
        with _Recorder() as recorder:
            function()
        steps = recorder.steps

        def replay() -> None:
            self.num_replays += 1
            for operation, arguments, options, output in steps:
                again = operation(*arguments, **options)
                # A view is there already, and what an operation in place returns is what it was given.
                if isinstance(output, torch.Tensor) and again.data_ptr() != output.data_ptr():
                    output.copy_(again)

        return replay


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if operation in _READ_ON_THE_HOST:
            raise RuntimeError("operation not permitted when stream is capturing")
        output = operation(*arguments, **(options or {}))
        self.steps.append((operation, arguments, options or {}, output))
        return output


@torch.library.custom_op("specgate_tests::varlen_attention", mutates_args=())
def _opaque(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, max_q: int, max_k: int,
    scale: float | None, window_size: list[int], enable_gqa: bool, seqused_k: torch.Tensor, block_table: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    if max_q < cu_seq_q.diff().amax() or max_k < seqused_k.amax() or block_table.max() >= len(key):
        raise ValueError("the bounds do not hold")
    left, right = window_size
    return varlen_attention(
        query, key, value, cu_seq_q, None, max_q, max_k, scale=scale, window_size=(left, right), enable_gqa=enable_gqa,
        seqused_k=seqused_k, block_table=block_table,
    )  # fmt: skip


def one_operation(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None,
    max_q: int, max_k: int, *, window_size: tuple[int, int], num_splits: int, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Return what the reference gives, as one operation like the fused kernel: what it reads inside is its own matter.

    It holds the caller to the bounds, which the fused kernel trusts.
    """
    if num_splits != 1:
        raise ValueError("split, the fused kernel is wrong over pages")
    return _opaque(query, key, value, cu_seq_q, max_q, max_k, window_size=list(window_size), **options)
