"""The ways to decode that the benchmark puts side by side."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.cores import num_usable_cores
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.request_options import fixed_gamma
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import SCHEDULES
from specgate_lab.throughput.observed import Observe
from specgate_lab.throughput.runs import Decode, bare_way, pair_way
from specgate_lab.throughput.samples import (
    DRAFT,
    HF_ASSISTED,
    HF_ASSISTED_ALL_CORES,
    SPEC,
    SPEC_AHEAD,
    SPEC_AHEAD_AUTO,
    SPEC_GATE,
    TARGET,
    TARGET_HF,
    TARGET_HF_ALL_CORES,
    scheduled,
)
from specgate_lab.throughput.traffic import Traffic

_ASSISTED = {TARGET_HF: HF_ASSISTED, TARGET_HF_ALL_CORES: HF_ASSISTED_ALL_CORES}
"""One process is both: what decodes with the target alone, and with an assistant."""


def pair_ways(
    orchestrator: Orchestrator, models: ModelOptions, request: GenerationRequest, traffic: Traffic
) -> dict[str, Decode]:
    """Return the ways through our services; ``request`` brings the γ, and the gate of the gated row."""
    spec = _in_every_round(models, request)
    requests = {TARGET: replace(spec, gamma=0), SPEC: spec, SPEC_GATE: request}
    return {name: pair_way(orchestrator, like, traffic) for name, like in requests.items()}


def observed_way(
    orchestrator: Orchestrator, models: ModelOptions, request: GenerationRequest, traffic: Traffic, observe: Observe
) -> Decode:
    """Return the way of ``spec`` with those who observe each request."""
    return pair_way(orchestrator, _in_every_round(models, request), traffic, observe)


def _in_every_round(models: ModelOptions, request: GenerationRequest) -> GenerationRequest:
    return replace(request, gate=Gate.NONE, gate_threshold=None, gamma=fixed_gamma(models, request.gamma))


def ahead_ways(
    ahead: Orchestrator,
    on_demand: Orchestrator,
    models: ModelOptions,
    request: GenerationRequest,
    traffic: Traffic,
) -> dict[str, Decode]:
    """Return the same ways with a drafter that waits to be asked, and those with one that runs ahead."""
    ways = pair_ways(on_demand, models, request, traffic)
    auto = replace(request, gate=Gate.AUTO, gate_threshold=None, gamma=None)
    spec = pair_ways(ahead, models, request, traffic)[SPEC]
    return ways | {SPEC_AHEAD: spec, SPEC_AHEAD_AUTO: pair_way(ahead, auto, traffic)}


@asynccontextmanager
async def bare_ways(
    models: ModelOptions, cores: tuple[int, int] | None, log: Console, *, assisted: bool = True
) -> AsyncIterator[dict[str, Decode]]:
    """Start HuggingFace's loops of the models whose files are known; idle, they take no core from the others.

    Where the library does not draft for this target with this draft, ``log`` is told, and those ways are missing.
    On a GPU there is no way of all cores: it would be the same one again, with another copy of the target.
    """
    loops = _loops(models, cores, assisted)
    all_cores = loops.pop(TARGET_HF_ALL_CORES, None)
    async with AsyncExitStack() as stack:
        await _start(loops.values(), stack)
        if all_cores is not None and loops[TARGET_HF].device == "cpu":
            loops[TARGET_HF_ALL_CORES] = all_cores
            await _start([all_cores], stack)
        for name, loop in loops.items():
            if loop.no_assistant:
                log.print(f"no {_ASSISTED[name]}: {loop.no_assistant}", style="yellow", markup=False)
        yield {way: decode for name, loop in loops.items() for way, decode in _ways(name, loop).items()}


async def _start(loops: Collection[BareLoopProcess], stack: AsyncExitStack) -> None:
    for loop in loops:
        stack.push_async_callback(loop.stop)
    await asyncio.gather(*(loop.start() for loop in loops))


def _loops(models: ModelOptions, cores: tuple[int, int] | None, assisted: bool) -> dict[str, BareLoopProcess]:
    drafter_core, verifier_core = cores or (None, None)
    wanted = {
        DRAFT: (models.draft_model, models.service.value("threads"), drafter_core),
        TARGET_HF: (models.target_model, models.service.value("threads"), verifier_core),
        TARGET_HF_ALL_CORES: (models.target_model, num_usable_cores(), None),
    }
    return {
        name: BareLoopProcess(
            model,
            dtype=models.service.value("dtype"),
            device=models.service.value("device"),
            threads=threads,
            cpu=core,
            assistant=models.draft_model if assisted and name in _ASSISTED else None,
        )
        for name, (model, threads, core) in wanted.items()
        if model is not None
    }


def _ways(name: str, loop: BareLoopProcess) -> dict[str, Decode]:
    ways = {name: bare_way(loop)}
    if loop.has_assistant:
        ways |= {scheduled(_ASSISTED[name], schedule): bare_way(loop, schedule) for schedule in SCHEDULES}
    return ways
