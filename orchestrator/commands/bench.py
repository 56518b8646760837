"""``orchestrator bench``: the draft alone, the target alone in three ways, and the two together."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.bare_loop import BareLoop
from orchestrator.commands.bench_prompts import BENCH_PROMPTS
from orchestrator.commands.bench_requests import bench_request, full_length, load_request
from orchestrator.commands.bench_rows import (
    DRAFT,
    SPEC,
    SPEC_GATE,
    TARGET,
    TARGET_HF,
    TARGET_HF_ALL_CORES,
    Agreement,
    Row,
    Sample,
    agreement_of,
    rows_of,
)
from orchestrator.commands.bench_runs import Decode, bare_way, measure, pair_way
from orchestrator.commands.bench_table import print_rows
from orchestrator.commands.launch import Pair, open_pair
from orchestrator.commands.load_bench import load_prompts, run_load
from orchestrator.commands.load_options import LoadOptions
from orchestrator.commands.loading_bars import counting_bar
from orchestrator.commands.model_options import ModelOptions
from orchestrator.commands.option_groups import takes_groups
from orchestrator.commands.prompts import Prompt, capacity_for, read_prompts, with_token_ids
from orchestrator.commands.render import output_console
from orchestrator.commands.request_options import DraftingOptions, SamplingOptions, fixed_gamma
from orchestrator.commands.results import write_json
from orchestrator.request import Gate, GenerationRequest
from specgate.types import SamplingParams, Verification, check_range

DEFAULT_REPEATS = 3
MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class Report:
    """The rows, and for how many prompts the texts were equal where they must be."""

    rows: list[Row]
    agreement: Agreement | None


@takes_groups
def bench(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    load: LoadOptions,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines. [default: short Python beginnings]")
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often all is measured.")] = DEFAULT_REPEATS,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows here, too.")] = None,
) -> None:
    """Measure decode tokens/s: both models alone and together, on the same prompts, in turns.

    With --concurrency, --rate or --long-prompt: many requests at a time instead, with speculation off and on.
    """
    check_range("repeats", repeats, 1, MAX_REPEATS)
    if load.is_wanted:
        request = load_request(models, drafting, sampling)
        _bench_load(models, load, read_prompts(prompts, request) if prompts else None, request, repeats, json)
        return
    request = bench_request(models, drafting, sampling)
    todo = read_prompts(prompts, request) if prompts else [Prompt(request, text) for text in BENCH_PROMPTS]
    if json:
        # A file that cannot be written is told now, not after minutes of measuring.
        write_rows(json, [])
    report = asyncio.run(_bench(models, todo, request, repeats))
    if json:
        write_rows(json, report.rows)
    print_rows(output_console(), report.rows, report.agreement)


def _bench_load(
    models: ModelOptions,
    load: LoadOptions,
    prompts: Sequence[Prompt] | None,
    request: GenerationRequest,
    repeats: int,
    json: Path | None,
) -> None:
    load.prepare()
    if json:
        write_json(json, {})
    report = run_load(models, load, prompts or load_prompts(request), request, repeats)
    if json:
        write_json(json, report.to_object())


async def _bench(models: ModelOptions, prompts: Sequence[Prompt], request: GenerationRequest, repeats: int) -> Report:
    log = Console(stderr=True)
    async with open_pair(models, with_draft=True, capacity=capacity_for(prompts, 1), log=log) as pair:
        return await measure_pair(pair, models, prompts, request, repeats, log)


async def measure_pair(
    pair: Pair,
    models: ModelOptions,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    log: Console,
    budget_s: float = math.inf,
) -> Report:
    """Measure all rows that can run where the services are, beside a running pair; see ``measure`` for the budget."""
    requests = [full_length(with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
    async with _bare_loops(models, pair.cores) as loops:
        ways: dict[str, Decode] = {name: bare_way(loop) for name, loop in loops.items()}
        ways |= _pair_ways(pair, models, request)
        with counting_bar(log, "measuring", len(ways) * len(requests) * repeats) as on_turn:
            samples = await measure(ways, requests, repeats, on_turn, budget_s)
    return Report(rows_of(samples), _agreement(samples, requests))


def _pair_ways(pair: Pair, models: ModelOptions, request: GenerationRequest) -> dict[str, Decode]:
    always = replace(request, gate=Gate.NONE, gate_threshold=None)
    requests = {
        TARGET: replace(always, gamma=0),
        SPEC: replace(always, gamma=fixed_gamma(models, request.gamma)),
        SPEC_GATE: request,
    }
    return {name: pair_way(pair.orchestrator, like) for name, like in requests.items()}


@asynccontextmanager
async def _bare_loops(models: ModelOptions, cores: tuple[int, int] | None) -> AsyncIterator[dict[str, BareLoop]]:
    """Start the bare loops of the models whose files are known; idle, they take no core from the others."""
    drafter_core, verifier_core = cores or (None, None)
    wanted = {
        DRAFT: (models.draft_model, models.threads, drafter_core),
        TARGET_HF: (models.target_model, models.threads, verifier_core),
        TARGET_HF_ALL_CORES: (models.target_model, len(os.sched_getaffinity(0)), None),
    }
    loops = {
        name: BareLoop(model, dtype=models.dtype, device=models.device, threads=threads, cpu=core)
        for name, (model, threads, core) in wanted.items()
        if model is not None
    }
    async with AsyncExitStack() as stack:
        for loop in loops.values():
            stack.push_async_callback(loop.stop)
        await asyncio.gather(*(loop.start() for loop in loops.values()))
        yield loops


def _agreement(samples: Mapping[str, Sequence[Sample]], requests: Sequence[GenerationRequest]) -> Agreement | None:
    """Compare the texts that are promised to be equal; rejection above temperature 0 promises a law, no text."""
    if any(one.verification is Verification.REJECTION and not one.sampling.greedy for one in requests):
        return None
    # The bare loop knows nothing of penalties and biases.
    is_plain = all(one.sampling == SamplingParams(temperature=0.0) for one in requests)
    names = (TARGET_HF, TARGET, SPEC, SPEC_GATE) if is_plain else (TARGET, SPEC, SPEC_GATE)
    return agreement_of(samples, [name for name in names if name in samples])


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as a JSON list of objects. Raises as ``write_json`` does."""
    write_json(path, [row.to_object() for row in rows])
