"""``orchestrator bench``: speed of the models alone and together, beside HuggingFace's own loop."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.bench.load.command import run_load
from specgate_lab.bench.load.options import LoadOptions
from specgate_lab.bench.network import NetworkOptions, run_network
from specgate_lab.bench.pair_variants import measure_pair
from specgate_lab.bench.sources import SourceOptions, run_sources
from specgate_lab.bench.table import draw_rows, print_rows
from specgate_lab.options import PromptOptions
from specgate_lab.report import ResultsFile, results_path
from specgate_lab.soak.command import SoakOptions, run_soak
from specgate_lab.variants import Traffic
from specgate_lab.workload import BENCH_PROMPTS, bench_request, load_request, mixed_prompts, request_object

DEFAULT_REPEATS = 3
MAX_REPEATS = 1000


@takes_groups
def bench(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    load: LoadOptions,
    network: NetworkOptions,
    sources: SourceOptions,
    soak: SoakOptions,
    prompts: PromptOptions,
    repeats: Annotated[int, typer.Option(help="Repeats of the whole measurement.")] = DEFAULT_REPEATS,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the results to this file.", show_default="a file of its own"
        ),
    ] = None,
    assisted: Annotated[
        bool, typer.Option("--assisted", help="Also measure HuggingFace's assisted generation; takes minutes.")
    ] = False,
) -> None:
    """Measure tokens/s of each model alone and of the pair, on the same prompts, in turns.

    With --concurrency, --rate or --long-prompt: many requests at a time, with speculation off and on.
    With --added-delay-ms: a slower network to the services.
    With --sources: every draft source under the gate auto.
    With --soak: failures and growth of a served system over time.
    """
    check_range("repeats", repeats, 1, MAX_REPEATS)
    _check_together(models, load, network, assisted=assisted)
    is_other = load.is_wanted or network.is_wanted or assisted
    if sources.is_wanted and is_other:
        raise InvalidArgument("sources", "go with no other kind of measurement")
    if soak.is_wanted and (is_other or sources.is_wanted or prompts.prompts or json):
        raise InvalidArgument("soak", "goes with no other kind of measurement, and has prompts of its own")
    kinds = {"--added-delay-ms": network.is_wanted, "--sources": sources.is_wanted, "--soak": soak.is_wanted}
    for flag in (flag for flag, is_wanted in kinds.items() if is_wanted):
        models.check_has_services(flag)
    if soak.is_wanted:
        return run_soak(models, soak)
    request = (load_request if load.is_wanted else bench_request)(models, drafting, sampling)
    todo = prompts.read(request, mixed_prompts() if load.is_wanted else BENCH_PROMPTS)
    load.prepare()
    log = Console(stderr=True)
    file = ResultsFile.writable(json) if json else _usual_file(log)
    if sources.is_wanted:
        results = asyncio.run(run_sources(models, sources, todo, request, repeats))
    elif load.is_wanted:
        results = asyncio.run(run_load(models, load, todo, request, repeats))
    elif network.is_wanted:
        results = asyncio.run(run_network(models, network.delays_ms, todo, request, repeats, load.plots))
    else:
        results = uvloop.run(_bench_pair(models, todo, request, repeats, load.plots, assisted=assisted))
    if file:
        file.write({"request": request_object(request), **results})
        log.print(f"results: {file.path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _usual_file(log: Console) -> ResultsFile | None:
    path = results_path("bench")
    if path is None:
        log.print("the results are not kept: give --json FILE", style="yellow")
    return ResultsFile(path) if path else None


def _check_together(models: ModelOptions, load: LoadOptions, network: NetworkOptions, *, assisted: bool) -> None:
    if assisted and (network.is_wanted or load.is_wanted):
        problem = "does not go with --added-delay-ms, --concurrency, --rate and --long-prompt"
        raise InvalidArgument("assisted", problem)
    if network.is_wanted and load.is_wanted:
        raise InvalidArgument("added_delay_ms", "does not go with --concurrency, --rate and --long-prompt")
    if network.is_wanted and models.tls_ca is not None:
        raise InvalidArgument("added_delay_ms", "does not go with --tls-ca: certificates are not for a proxy's name")


async def _bench_pair(
    models: ModelOptions,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    plots: Path | None,
    *,
    assisted: bool,
) -> dict[str, Any]:
    """Measure one request at a time by every way to decode, print the table and draw it; return the results."""
    log, traffic, capacity = Console(stderr=True), Traffic(), capacity_for(prompts, 1)
    opening = open_pair(models, with_draft=True, capacity=capacity, log=log, wrap_call=traffic.counted)
    async with opening as pair:
        report = await measure_pair(pair, models, prompts, request, repeats, log, traffic, assisted=assisted)
        served = pair.models
    print_rows(output_console(), report)
    if plots is not None:
        draw_rows(plots, report.rows)
    return {"models": served, **report.to_object()}
