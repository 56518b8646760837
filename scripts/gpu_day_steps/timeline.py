"""Where the microseconds of one round go: a forward's pack, launch, choose and read, and real rounds part by part."""

import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

import measure_forward as forwards
import torch
from measure_round import Services, measured_rounds
from round_parts import BESIDE, medians_of

from gpu_day_steps.sizes import VOCAB_SIZE, sizes
from gpu_day_steps.smoke import options
from gpu_day_steps.step import Context
from specgate.runtime.batch_sampler import Choosing, answers
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.scheduler import Rows
from specgate.types import SamplingParams

GAMMA = 5
ROUNDS = 200
SAMPLINGS = {"greedy": SamplingParams(temperature=0.0), "temperature 1": SamplingParams()}


def of_a_round(context: Context) -> str:
    """Return the medians of a verification, of a draft token, and of what a round takes beside its forwards."""
    of = sizes(context)
    verify = _forward_parts(context, "target", of.target, GAMMA + 1)
    draft = _forward_parts(context, "draft", of.draft, 1)
    between = _between(context)
    return f"verify {verify:.0f} µs, a draft token {draft:.0f} µs, a round beside its forwards {between:.0f} µs"


def _forward_parts(context: Context, name: str, shape: dict[str, int], rows: int) -> float:
    """Time the parts of a forward; return the whole of it, with greedy choices."""
    arguments = options(context)
    device = torch.device(context.where.device)
    loaded = forwards.random_model(name, shape, device, getattr(torch, context.where.dtype))
    runner = forwards.serving_runner(loaded, arguments)
    sequence = forwards.behind_context(runner, arguments.context, rows, 0)
    batch = [Rows(sequence, rows, rows)]

    def forward() -> Any:
        sequence.num_cached = arguments.context
        return runner.forward(batch)

    parts = {"pack": _pack_us(runner, batch, arguments), **_launch_us(forward, device, arguments)}
    logits = forward()
    for sampling, params in SAMPLINGS.items():
        # A verdict tells the target's confidence.
        choosing = Choosing(params, 7, 0, runner.vocab_size, with_probs=name == "target")
        parts |= _choose_us(sampling, logits, choosing, device, arguments)
    context.row(
        model=name, rows=rows, graphs=len(runner.buckets), **{f"{part}_us": round(us, 1) for part, us in parts.items()}
    )
    return parts["forward"] + parts["choose and read, greedy"]


def _pack_us(runner: ModelRunner, batch: list[Rows], arguments: Namespace) -> float:
    """Time making the integers of a forward and sending them. A graph packs alike."""
    batch[0].sequence.num_cached = arguments.context
    pages = runner.kernel.pages(runner.pool.num_pages, runner.pool.page_size)
    return forwards.median_us(
        lambda: runner.kernel.inputs(batch, pages, runner.device), runner.device, arguments.repeats
    )


def _launch_us(forward: Callable[[], Any], device: torch.device, arguments: Namespace) -> dict[str, float]:
    """Time a forward on the host until it is launched, on the device, and as a whole."""
    launched, on_device, whole = [], [], []
    for _ in range(arguments.repeats + 3):
        clock = _Clock(device)
        forward()
        launched.append(clock.host_us())
        on_device.append(clock.device_us())
        whole.append(clock.host_us())
    return {"launch": median(launched[3:]), "launch and gpu": median(on_device[3:]), "forward": median(whole[3:])}


class _Clock:
    """Started on an idle device."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        self._start_s = time.perf_counter()

    def host_us(self) -> float:
        """Return the microseconds since the start."""
        return (time.perf_counter() - self._start_s) * 1e6

    def device_us(self) -> float:
        """Wait for the device, and return what it took since the start."""
        if self._events is None:
            return self.host_us()
        self._events[1].record()
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) * 1e3


def _choose_us(
    sampling: str, logits: list[torch.Tensor], choosing: Choosing, device: torch.device, arguments: Namespace
) -> dict[str, float]:
    """Time the choice of a token in each row with its one transfer to the host, and such a transfer alone."""
    table = torch.zeros(len(logits[0]), 4, device=device)
    whole = forwards.median_us(lambda: answers(logits, [choosing]), device, arguments.repeats)
    read = forwards.median_us(table.tolist, device, arguments.repeats)
    return {f"choose and read, {sampling}": whole, "read": read}


def _between(context: Context) -> float:
    """Take real rounds of a model of nothing apart; return what one over gRPC takes beside its forwards."""
    services = Services.GRPC, Services.ONE_PROCESS
    num_rounds, vocab_size = (5, 512) if context.where.dry else (ROUNDS, VOCAB_SIZE)
    measured = measured_rounds(vocab_size, num_rounds, context.where.device, services)
    told = {way: medians_of(rounds) for way, rounds in measured.items()}
    for way, parts in told.items():
        context.row(round=str(way), **{f"{part}, µs": round(us, 1) for part, us in parts.items()})
    return next(parts[BESIDE] for way, parts in told.items() if way.services is Services.GRPC)
