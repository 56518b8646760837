"""What one dependent phase costs on this card, by kernels one behind the other."""

import importlib
from functools import partial

import measure_forward as forwards
import torch

from gpu_day_steps.estimates import PHASE_US
from gpu_day_steps.step import Context
from specgate.runtime.cuda.graphs import CudaCapturer

PHASES, PROGRAMS = 150, 132
"""As a draft token of 30 layers has; a program a multiprocessor."""


def empty(context: Context) -> str:
    """Return the µs of a phase by each way."""
    device = torch.device(context.where.device)
    if device.type != "cuda":
        return "dry: needs a card"
    kernels = importlib.import_module("gpu_day_steps.empty_kernels")
    found = {}
    for name, early in (("kernels in a graph", False), ("kernels in a graph, PDL", True)):
        run = CudaCapturer(device).capture(partial(kernels.chain, PROGRAMS, PHASES, early=early))
        found[name] = forwards.median_us(run, device, 20) / PHASES
        context.row(phase=name, us=round(found[name], 3))
    context.compare("µs of a kernel with PDL", found["kernels in a graph, PDL"], PHASE_US)
    return ", ".join(f"{name} {us:.2f} µs" for name, us in found.items())
