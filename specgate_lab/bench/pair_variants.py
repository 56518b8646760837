"""The ways to decode that the benchmark puts side by side."""

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.cores import num_usable_cores
from orchestrator.local.launch import Pair, capacity_for
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.request_options import fixed_gamma
from specgate.errors import ServiceUnavailable
from specgate.gguf.file import is_gguf
from specgate_lab.bench.row_names import (
    DRAFT,
    HF_ASSISTED,
    HF_ASSISTED_ALL_CORES,
    LLAMA_CPP,
    LLAMA_CPP_ALL_CORES,
    LLAMA_CPP_DRAFT,
    SPEC,
    SPEC_AHEAD,
    SPEC_AHEAD_AUTO,
    SPEC_GATE,
    TARGET,
    TARGET_HF,
    TARGET_HF_ALL_CORES,
    scheduled,
)
from specgate_lab.bench.rows import RowsReport, promised_agreement, rows_of
from specgate_lab.drafters import connect, on_demand_drafter
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE, GateChoice
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import SCHEDULES
from specgate_lab.progress import counting_bar
from specgate_lab.variants import Decode, Traffic, decode_in_turns, pair_variant
from specgate_lab.workload import full_requests

_ASSISTED = {TARGET_HF: HF_ASSISTED, TARGET_HF_ALL_CORES: HF_ASSISTED_ALL_CORES}
"""One process is both: what decodes with the target alone, and with an assistant."""


def pair_variants(
    pair: Orchestrator,
    on_demand: Orchestrator | None,
    models: ModelOptions,
    request: GenerationRequest,
    traffic: Traffic,
) -> dict[str, Decode]:
    """Return the variants that go through our services.

    Args:
        on_demand: has a drafter that does not run ahead, which all variants use but those that measure running ahead;
            None where the pair's own drafter does not run ahead.
        request: has the γ, and the gate of the gated variant.
    """
    spec = GateChoice(Gate.NONE, fixed_gamma(models, request.gamma))
    choices = {TARGET: TARGET_ALONE, SPEC: spec, SPEC_GATE: GateChoice.like(request)}
    plain = on_demand or pair
    variants = {name: pair_variant(plain, choice, traffic) for name, choice in choices.items()}
    if on_demand is not None:
        variants[SPEC_AHEAD] = pair_variant(pair, spec, traffic)
        variants[SPEC_AHEAD_AUTO] = pair_variant(pair, AUTO_GATE, traffic)
    return variants


@asynccontextmanager
async def bare_variants(
    models: ModelOptions, cores: tuple[int, int] | None, log: Console, *, assisted: bool = True
) -> AsyncIterator[dict[str, Decode]]:
    """Start HuggingFace's loops of the models whose files are known; idle, they take no core from the others.

    Where the library does not draft for this target with this draft, ``log`` says so, and those variants are missing.
    On a GPU none has all cores: it would be the same one again, with another copy of the target.
    """
    loops = _loops(models, cores, assisted)
    all_cores = loops.pop(TARGET_HF_ALL_CORES, None)
    async with AsyncExitStack() as stack:
        await _start(loops.values(), stack)
        if all_cores is not None and loops[TARGET_HF].device == "cpu":
            loops[TARGET_HF_ALL_CORES] = all_cores
            await _start([all_cores], stack)
            loops |= await _started(_llama_cpp_loops(models, cores, assisted), stack, log)
        variants: dict[str, Decode] = {name: loop.run for name, loop in loops.items()}
        for name, loop in loops.items():
            if loop.no_assistant:
                log.print(f"no {_ASSISTED[name]}: {loop.no_assistant}", style="yellow", markup=False)
            if loop.has_assistant and name in _ASSISTED:
                variants |= {scheduled(_ASSISTED[name], one): partial(loop.run, schedule=one) for one in SCHEDULES}
        yield variants


async def _start(loops: Collection[BareLoopProcess], stack: AsyncExitStack) -> None:
    for loop in loops:
        stack.push_async_callback(loop.stop)
    await asyncio.gather(*(loop.start() for loop in loops))


async def _started(
    loops: Mapping[str, BareLoopProcess], stack: AsyncExitStack, log: Console
) -> dict[str, BareLoopProcess]:
    """Return those that could be started; ``log`` says of the others why not."""
    started = {}
    for name, loop in loops.items():
        try:
            await _start([loop], stack)
            started[name] = loop
        except ServiceUnavailable as error:
            log.print(f"no {name}: {error}", style="yellow", markup=False)
    return started


def _loops(models: ModelOptions, cores: tuple[int, int] | None, assisted: bool) -> dict[str, BareLoopProcess]:
    drafter_core, verifier_core = cores or (None, None)
    wanted = {
        DRAFT: (models.draft_model, None, drafter_core),
        TARGET_HF: (models.target_model, None, verifier_core),
        TARGET_HF_ALL_CORES: (models.target_model, num_usable_cores(), None),
    }
    return {
        name: BareLoopProcess.like_services(
            models, model, threads, core, models.draft_model if assisted and name in _ASSISTED else None
        )
        for name, (model, threads, core) in wanted.items()
        if model is not None
    }


def _llama_cpp_loops(models: ModelOptions, cores: tuple[int, int] | None, assisted: bool) -> dict[str, BareLoopProcess]:
    """Return those that can be: llama.cpp reads GGUF alone, and comes as a package of its own."""
    target, draft = models.target_model, models.draft_model
    if target is None or not is_gguf(target) or find_spec("xllamacpp") is None:
        return {}
    loop = partial(BareLoopProcess.like_services, models, target, module="specgate_lab.peers.llama_cpp")
    loops = {LLAMA_CPP: loop(cpu=cores[1] if cores else None), LLAMA_CPP_ALL_CORES: loop(threads=num_usable_cores())}
    if assisted and draft is not None and is_gguf(draft):
        loops[LLAMA_CPP_DRAFT] = loop(threads=num_usable_cores(), assistant=draft)
    return loops


async def measure_pair(
    pair: Pair,
    models: ModelOptions,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    log: Console,
    traffic: Traffic,
    budget_s: float = math.inf,
    *,
    assisted: bool,
) -> RowsReport:
    """Measure all rows that can run beside a running pair; see ``measure`` for the budget.

    ``traffic`` counts what the pair's calls send and receive. Without ``assisted`` HuggingFace's own speculation is
    left out: it takes longer than all else together.
    """
    requests = full_requests(prompts, pair.tokenizer)
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(bare_variants(models, pair.cores, log, assisted=assisted))
        drafter = await stack.enter_async_context(on_demand_drafter(pair, models, capacity_for(prompts, 1), log))
        on_demand = await stack.enter_async_context(await connect(pair, drafter)) if drafter else None
        variants = bare | pair_variants(pair.orchestrator, on_demand, models, request, traffic)
        with counting_bar(log, "measuring", len(variants) * len(requests) * repeats) as on_turn:
            samples = await decode_in_turns(variants, requests, repeats, on_turn, budget_s)
    return RowsReport(rows_of(samples), promised_agreement(samples, requests))
