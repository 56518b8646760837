"""A target's forward of few rows by our kernels and by its own, against its bytes."""

from typing import Any

import measure_forward as forwards
import torch

from gpu_day_steps.estimates import TARGET_US
from gpu_day_steps.sizes import sizes
from gpu_day_steps.smoke import options
from gpu_day_steps.step import CheckFailed, Context
from specgate.runtime.cuda.decoder.few_rows import FewRows
from specgate.runtime.cuda.graphs import FEW_ROWS, Bucket, CudaCapturer
from specgate.runtime.engine.model_runner import ModelRunner

ROWS = (1, 6, 16)


def by_own_kernels(context: Context) -> str:
    """Fail where few rows have no kernels of their own; return the µs of a forward of one row."""
    device, of = torch.device(context.where.device), sizes(context)
    loaded = forwards.random_model("target", of.target, device, getattr(torch, context.where.dtype))
    runner = forwards.serving_runner(loaded, options(context))
    bandwidth = forwards.copy_bandwidth(device, 1 << 24 if context.where.dry else forwards.COPY_BYTES)
    context.row(floor_us=round(1e6 * forwards.read_bytes(loaded) / bandwidth), call=type(runner.call).__name__)
    if context.where.dry:
        return "dry: needs a card"
    if not isinstance(runner.call, FewRows):
        raise CheckFailed("few rows have no kernels of their own; the log says why")
    served, plain = runner.call, runner.call.otherwise
    own_us, plain_us = (_row_us(context, runner, call, name) for call, name in ((served, "own"), (plain, "plain")))
    context.compare("µs of a target's forward of one row", own_us, TARGET_US)
    return f"one row {own_us:.0f} µs, by the model's own forward {plain_us:.0f} µs"


def _row_us(context: Context, runner: ModelRunner, call: Any, name: str) -> float:
    """Time forwards of few rows in a graph, tell all, and return that of one row."""
    runner.call = call
    buckets = [Bucket(1, FEW_ROWS, few=True)] if isinstance(call, FewRows) else [Bucket(1, rows) for rows in ROWS]
    runner.capture(buckets, CudaCapturer(runner.device), lambda *_: None)
    times = {rows: forwards.serving_us(runner, 1, rows, options(context))[0] for rows in ROWS}
    context.row(setting=name, **{f"rows_{rows}_us": round(us) if us else None for rows, us in times.items()})
    return times[1] or float("inf")
