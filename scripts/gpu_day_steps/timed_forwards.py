"""Forwards of both shapes against the time that reading their weights takes, ours and HuggingFace's."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import measure_forward as forwards
import torch
from torch.profiler import ProfilerActivity, profile

from gpu_day_steps.sizes import Sizes, sizes
from gpu_day_steps.smoke import options
from gpu_day_steps.step import Context
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.loading import LoadedModel
from specgate.runtime.scheduler import Rows

SESSIONS = 8
HUGGINGFACE = ("sdpa", "eager")
Case = tuple[int, int]
"""Sequences, and rows of each."""


def both_shapes(context: Context) -> str:
    """Return how far a graph's forward of one row is from the floor, for target and draft."""
    device = torch.device(context.where.device)
    bandwidth = forwards.copy_bandwidth(device, 1 << 24 if context.where.dry else forwards.COPY_BYTES)
    of = sizes(context)
    told = [_shape(context, name, shape, bandwidth) for name, shape in (("target", of.target), ("draft", of.draft))]
    return "; ".join(told)


def _shape(context: Context, name: str, shape: dict[str, int], bandwidth: float) -> str:
    arguments, cases = options(context), _cases(sizes(context))
    loaded = forwards.random_model(name, shape, torch.device(context.where.device), getattr(torch, context.where.dtype))
    theirs = {way: _huggingface(context, loaded, way, cases, arguments) for way in HUGGINGFACE}
    runner = forwards.serving_runner(loaded, arguments)
    floor_us = 1e6 * forwards.read_bytes(loaded) / bandwidth
    best = 0.0
    for case in reversed(cases):
        graphs_us, eager_us = forwards.serving_us(runner, *case, arguments)
        best = graphs_us or eager_us
        figures = {"floor_us": floor_us, "graphs_us": graphs_us, "no_graphs_us": eager_us}
        figures |= {f"hf_{way}_us": times[case] for way, times in theirs.items()}
        context.row(model=name, sessions=case[0], rows=case[1], **{key: _whole(us) for key, us in figures.items()})
    for use_graphs in (True, False):
        context.row(model=name, use_graphs=use_graphs, kernels=_kernels(runner, arguments, use_graphs=use_graphs))
    return f"{name} {best:.0f} µs, {best / floor_us:.1f} × its floor"


def _cases(of: Sizes) -> list[Case]:
    """Return the cases, the most telling first: one row of one session."""
    rows = (1, max(of.gammas) + 1)
    return [(sequences, count) for sequences in (1, SESSIONS) for count in rows]


def _huggingface(
    context: Context, loaded: LoadedModel, way: str, cases: list[Case], arguments: Namespace
) -> dict[Case, float]:
    context.progress(f"{loaded.name}: HuggingFace's forward by {way}")
    loaded.model.set_attn_implementation(way)
    return dict(forwards.huggingface_us(loaded, cases, arguments))


def _whole(us: float | None) -> int | None:
    return None if us is None else round(us)


def _kernels(runner: ModelRunner, arguments: Namespace, *, use_graphs: bool) -> int:
    """Return how many kernels one row's forward launches; on a CPU how many operators it calls."""
    sequence = forwards.behind_context(runner, arguments.context, 1, 0)

    def forward() -> Any:
        sequence.num_cached = arguments.context
        return runner.forward([Rows(sequence, 1, 1)], use_graphs=use_graphs)

    try:
        return _counted(forward, runner.device)
    finally:
        runner.pool.free(sequence)


def _counted(run: Callable[[], Any], device: torch.device) -> int:
    on_cuda = device.type == "cuda"
    kind = ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU
    run()
    with profile(activities=[kind]) as profiler:
        run()
        if on_cuda:
            torch.cuda.synchronize(device)
    wanted = torch.autograd.DeviceType.CUDA if on_cuda else torch.autograd.DeviceType.CPU
    names = [event.name for event in profiler.events() if event.device_type == wanted]
    return sum(not name.startswith(("Memcpy", "Memset", "Activity", "cuda")) for name in names)
