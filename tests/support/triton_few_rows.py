"""A model whose forwards of few rows are served by our Triton kernels: in the interpreter, in float32."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.few_row_kernels import FewRowKernels, Tiles
from specgate.runtime.cuda.decoder.few_rows import FewRows
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from tests.support.models import load_float32, quiet

FEW_PROGRAMS = Tiles(qkv=64, add=64, gate=128, head=128, attend=8, columns=64, stages=1, add_columns=64, add_stages=1)
"""The interpreter takes ten milliseconds for each."""
SEVERAL_PROGRAMS = Tiles(qkv=16, add=16, gate=32, head=64, attend=8, columns=32, stages=1, add_columns=32, add_stages=1)


def runner_with_kernels(folder: Path, tiles: Tiles = FEW_PROGRAMS, page_size: int = 16) -> ModelRunner:
    """Load a model and bring it onto its serving path."""
    loaded = load_float32(folder)
    kernel = VarlenKernel(varlen_attention, loaded.context_length)
    runner = prepare(loaded, 4096, page_size, quiet, [kernel], packs=False)
    runner.call = FewRows(loaded, runner.call, partial(FewRowKernels, tiles=tiles))
    return runner


def multiply_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter's dot round a row alike wherever it lies in its block, as a card does."""
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    def dot(a: Any, b: Any, d: Any, *_: Any) -> Any:
        # [..., rows, columns] times [..., columns, outputs], a row at a time.
        rows = [(a.data[..., row, :, None] * b.data).sum(-2) for row in range(a.data.shape[-2])]
        found = numpy.stack(rows, -2).astype(d.data.dtype)
        return TensorHandle(found + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter_builder, "create_dot", dot)
