"""``orchestrator compare-gates``: the gate auto against every fixed choice, on real services, in turns."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.results import write_json
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams
from specgate_lab.gates.cases import DraftKind, turns
from specgate_lab.gates.measure import CaseResult, measure_case
from specgate_lab.gates.options import GateOptions
from specgate_lab.gates.pairs import starter_of
from specgate_lab.gates.plots import draw
from specgate_lab.gates.report import markdown
from specgate_lab.gates.traces import recorded, replayed
from specgate_lab.provenance import provenance
from specgate_lab.report import counting_bar, print_lost
from specgate_lab.workload import BENCH_PROMPTS, full_length


@takes_groups
def compare_gates(
    models: ModelOptions,
    gates: GateOptions,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts: JSON lines with 'prompt' or 'token_ids'.",
            show_default="short Python beginnings",
        ),
    ] = None,
) -> None:
    """Compare the gate auto with every fixed choice: tokens/s, case by case, block by block in turns.

    auto learns from its own rounds alone, from nothing in every case.
    """
    models.check_has_services("compare-gates")
    gates.prepare()
    request = GenerationRequest(
        (),
        SamplingParams(temperature=0.0),
        max_tokens=gates.max_tokens,
        seed=gates.seed,
        verification=gates.verification,
    )
    todo = read_prompts(prompts, request) if prompts else [Prompt(request, text) for text in BENCH_PROMPTS]
    asyncio.run(_compare(models, gates, todo))


def _report(gates: GateOptions, outcomes: Sequence[CaseResult]) -> None:
    if not outcomes:
        return
    out = output_console()
    out.print(markdown(outcomes), markup=False, soft_wrap=True, end="")
    print_lost(out, sum(outcome.num_survived for outcome in outcomes))
    if gates.out is not None and gates.draws:
        draw(gates.out, outcomes)


async def _compare(models: ModelOptions, gates: GateOptions, prompts: Sequence[Prompt]) -> None:
    log, cases, choices, origin = Console(stderr=True), gates.cases, gates.choices, provenance()
    # What is freed may be taken again before it is free.
    capacity = capacity_for(prompts, 2 * max(case.concurrency for case in cases))
    num_turns = len(cases) * sum(1 for _ in turns(choices, gates.blocks, gates.warm_up))
    async with (
        open_pair(models, with_draft=True, capacity=capacity, log=log) as pair,
        AsyncExitStack() as stack,
    ):
        requests = [full_length(with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
        starters = {
            kind: await starter_of(kind, pair, models, capacity, requests[0], stack, log) for kind in gates.kinds
        }
        with counting_bar(log, "measuring", num_turns) as on_block:
            outcomes: list[CaseResult] = []
            # What comes later may fail, and hours of measuring must not be lost with it.
            try:
                for case in cases:
                    starter, size = starters[case.draft], (gates.blocks, gates.warm_up)
                    outcomes.append(await measure_case(starter, case, choices, requests, *size, on_block))
                    _write(gates, outcomes, origin)
            finally:
                _report(gates, outcomes)
        if gates.traces and gates.out is not None:
            recorders = {
                kind: await starter_of(kind, pair, models, capacity, requests[0], stack, log, on_demand=True)
                for kind in gates.kinds
            }
            await _replay(gates, gates.out, recorders, requests, log)


async def _replay(
    gates: GateOptions,
    folder: Path,
    starters: Mapping[DraftKind, Orchestrator],
    requests: Sequence[GenerationRequest],
    log: Console,
) -> None:
    lone = sorted({case._replace(concurrency=1) for case in gates.cases})
    traces = await recorded(folder, starters, lone, requests, gates.traces, log)
    table = await asyncio.to_thread(replayed, folder, traces, gates.clients)
    output_console().print(table, markup=False, soft_wrap=True, end="")


def _write(gates: GateOptions, outcomes: Sequence[CaseResult], origin: Mapping[str, Any]) -> None:
    if (folder := gates.out) is None:
        return
    told = [{**outcome.to_object(), "verification": str(gates.verification)} for outcome in outcomes]
    write_json(folder / "gates.json", {"provenance": origin, "cases": told})
    try:
        (folder / "gates.md").write_text(markdown(outcomes), "utf-8")
    except OSError as error:
        raise InvalidArgument("out", f"{folder} cannot be written: {error.strerror}") from error
