"""What one dependent phase costs on this card, by a barrier of programs and by kernels one behind the other."""

import importlib
from collections.abc import Callable
from typing import Any

import measure_forward as forwards
import torch

from gpu_day_steps.estimates import BARRIER_US, PHASE_US
from gpu_day_steps.step import CheckFailed, Context
from specgate.runtime.cuda.graphs import CudaCapturer

PHASES = 150
"""As a draft token of 30 layers has."""
PROGRAMS = ((66, 8), (132, 4), (132, 8), (264, 4))
"""Programs and warps of each; a card with fewer multiprocessors refuses the most."""


def empty(context: Context) -> str:
    """Fail where programs do not meet; return the µs of a phase by each way."""
    device = torch.device(context.where.device)
    if device.type != "cuda":
        return "dry: needs a card"
    kernels = importlib.import_module("gpu_day_steps.empty_kernels")
    place = kernels.meeting(device)
    barrier_us = min(
        _told(context, device, f"barrier, {programs} programs of {warps} warps", meet)
        for programs, warps in PROGRAMS
        if (meet := _meeting(kernels, place, programs, warps, context)) is not None
    )
    if float(place.report):
        raise CheckFailed("programs waited for one that did not come")
    chains = {
        name: _told(context, device, name, CudaCapturer(device).capture(chain))
        for name, chain in (
            ("kernels in a graph", lambda: kernels.chain(place, 132, PHASES, early=False)),
            ("kernels in a graph, PDL", lambda: kernels.chain(place, 132, PHASES, early=True)),
        )
    }
    context.compare("µs of a barrier", barrier_us, BARRIER_US)
    context.compare("µs of a kernel with PDL", chains["kernels in a graph, PDL"], PHASE_US)
    return f"a barrier {barrier_us:.2f} µs; " + ", ".join(f"{name} {us:.2f} µs" for name, us in chains.items())


def _meeting(kernels: Any, place: Any, programs: int, warps: int, context: Context) -> Callable[[], object] | None:
    try:
        kernels.meet(place, programs, 2, warps)
    # A launch that does not fit is refused.
    except RuntimeError as refusal:
        context.progress(f"{programs} programs of {warps} warps: {refusal}")
        return None
    return lambda: kernels.meet(place, programs, PHASES, warps)


def _told(context: Context, device: torch.device, name: str, run: Callable[[], object]) -> float:
    us = forwards.median_us(run, device, 20) / PHASES
    context.row(phase=name, us=round(us, 3))
    return us
