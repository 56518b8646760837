"""A target's forward of few rows by our kernels, against its bytes: what early launches and sizes of tiles bring."""

import importlib
from collections.abc import Mapping
from functools import partial
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
SETTINGS: Mapping[str, Mapping[str, int]] = {
    "defaults": {},
    "3 stages": {"stages": 3},
    "5 stages": {"stages": 5},
    "256 columns": {"columns": 256, "stages": 3},
    "wide head": {"head": 64},
    "wide gate": {"gate": 32},
}
MARGIN_S = 8.0


def every_setting(context: Context) -> str:
    """Fail where few rows have no kernels of their own; return the best µs of a forward of one row."""
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
    times = {"defaults, PDL": _row_us(context, runner, served, "defaults, PDL")}
    _row_us(context, runner, plain, "the model's own")
    kernels = importlib.import_module("specgate.runtime.cuda.decoder.few_row_kernels")
    for name, setting in SETTINGS.items():
        for pdl in (True, False) if name == "defaults" else (True,):
            if context.left_s > MARGIN_S and (name, pdl) != ("defaults", True):
                tiles = kernels.Tiles()._replace(**setting)
                make = partial(kernels.FewRowKernels, pdl=pdl, tiles=tiles)
                told = f"{name}{', PDL' if pdl else ''}"
                times[told] = _row_us(context, runner, FewRows(loaded, plain, make), told)
    best = min(times, key=times.__getitem__)
    context.compare("µs of a target's forward of one row", times["defaults, PDL"], TARGET_US)
    return f"one row {times['defaults, PDL']:.0f} µs; the best is {best}, {times[best]:.0f} µs"


def _row_us(context: Context, runner: ModelRunner, call: Any, name: str) -> float:
    """Time forwards of few rows in a graph, tell all, and return that of one row."""
    runner.call = call
    buckets = [Bucket(1, FEW_ROWS, few=True)] if isinstance(call, FewRows) else [Bucket(1, rows) for rows in ROWS]
    runner.capture(buckets, CudaCapturer(runner.device), lambda *_: None)
    times = {rows: forwards.serving_us(runner, 1, rows, options(context))[0] for rows in ROWS}
    context.row(setting=name, **{f"rows_{rows}_us": round(us) if us else None for rows, us in times.items()})
    return times[1] or float("inf")
