"""``orchestrator compare-gates``: the gate auto against every fixed choice, on real services, in turns."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from specgate.types import SamplingParams
from specgate_lab.gate_choice import ALONE, AUTO, GateChoice
from specgate_lab.gates.cases import Case
from specgate_lab.gates.drafters import Drafters
from specgate_lab.gates.measure import CaseResult, measure_case
from specgate_lab.gates.options import GateOptions
from specgate_lab.gates.traces import record_traces, replay_traces
from specgate_lab.options import PromptOptions, make_folder
from specgate_lab.progress import counting_bar
from specgate_lab.report import ResultsFile, can_draw, new_figure, print_lost, save_figure, write_whole
from specgate_lab.statistics import Ratio
from specgate_lab.workload import full_requests

_HEAD = (
    "| draft | temperature | at a time | target alone | best fixed | which | auto | auto / best | auto / alone |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_COLUMNS = 3
_COLOURS = {AUTO: "tab:green", ALONE: "tab:gray"}


@takes_groups
def compare_gates(models: ModelOptions, gates: GateOptions, prompts: PromptOptions) -> None:
    """Compare the gate auto with every fixed choice: tokens/s, case by case, block by block in turns.

    auto learns from its own rounds alone, from nothing in every case.
    """
    models.check_has_services("compare-gates")
    request = GenerationRequest(
        (),
        SamplingParams(temperature=0.0),
        max_tokens=gates.max_tokens,
        seed=0,
        verification=gates.verification,
    )
    todo = prompts.read(request)
    if gates.out is not None:
        make_folder("out", gates.out)
    asyncio.run(_compare(models, gates, todo))


async def _compare(models: ModelOptions, gates: GateOptions, prompts: Sequence[Prompt]) -> None:
    log, cases = Console(stderr=True), gates.cases
    # Room that is freed may be taken again before it is free.
    capacity = capacity_for(prompts, 2 * max(case.concurrency for case in cases))
    file = ResultsFile(gates.out / "gates.json", "out") if gates.out is not None else None
    async with open_pair(models, with_draft=True, capacity=capacity, log=log) as pair, AsyncExitStack() as stack:
        requests = full_requests(prompts, pair.tokenizer)
        drafters = Drafters(pair, models, capacity, stack, log)
        ranked = await _replay(gates, gates.out, drafters, requests, log) if gates.traces and gates.out else {}
        choices = {case: gates.choices_of(ranked.get(case, ())) for case in cases}
        endpoints = {kind: await drafters.start(kind) for kind in gates.kinds}
        num_blocks = sum(len(choices[case]) * gates.blocks + max(0, gates.warm_up - 1) for case in cases)
        results: list[CaseResult] = []
        with counting_bar(log, "measuring", num_blocks) as on_block:
            try:
                for case in cases:
                    drafting, size = endpoints[case.draft], (gates.blocks, gates.warm_up)
                    async with await drafters.connect(drafting) as fixed, await drafters.connect(drafting) as auto:
                        starts = fixed.generate, auto.generate
                        results.append(await measure_case(*starts, case, choices[case], requests, *size, on_block))
                    if file is not None:
                        _write(file, gates, results)
            finally:
                # A later case may fail, and hours of measuring must not be lost with it.
                if results:
                    _show(gates, results)


def _write(file: ResultsFile, gates: GateOptions, results: Sequence[CaseResult]) -> None:
    file.write({"cases": [{**one.to_object(), "verification": str(gates.verification)} for one in results]})
    write_whole(file.path.with_suffix(".md"), markdown(results), "out")


def _show(gates: GateOptions, results: Sequence[CaseResult]) -> None:
    out = output_console()
    out.print(markdown(results), markup=False, soft_wrap=True, end="")
    print_lost(out, sum(result.num_survived for result in results))
    if gates.out is not None and can_draw():
        draw_rates(gates.out / "rates.png", results)


async def _replay(
    gates: GateOptions, folder: Path, drafters: Drafters, requests: Sequence[GenerationRequest], log: Console
) -> dict[Case, list[GateChoice]]:
    """Record and replay traces; return the fixed choices of each case, best first."""
    async with AsyncExitStack() as stack:
        starts = {}
        for kind in gates.kinds:
            connecting = drafters.connect(await drafters.start(kind, on_demand=True))
            starts[kind] = (await stack.enter_async_context(await connecting)).generate
        lone = sorted({case._replace(concurrency=1) for case in gates.cases})
        traces = await record_traces(folder, starts, lone, requests, gates.traces, log)
    table, ranked = await asyncio.to_thread(replay_traces, folder, traces, gates.clients)
    output_console().print(table, markup=False, soft_wrap=True, end="")
    return ranked


def markdown(results: Sequence[CaseResult]) -> str:
    """Return a row for each case: tokens per second, and ratios with the bounds of their 95 % intervals."""
    return "\n".join([_HEAD, *map(_row, results)]) + "\n"


def _row(result: CaseResult) -> str:
    case, rates, best = result.case, result.rates, result.best_fixed
    figures = (
        f"{rates[ALONE]:.0f} | {rates[best]:.0f} | {best} | {rates[AUTO]:.0f} "
        f"| {_shown(result.auto_to(best))} | {_shown(result.auto_to(ALONE))}"
    )
    return f"| {case.draft} | {case.temperature:g} | {case.concurrency} | {figures} |"


def _shown(ratio: Ratio) -> str:
    interval = f" ({ratio.interval.low:.3f} to {ratio.interval.high:.3f})" if ratio.interval else ""
    return f"{ratio.value:.3f}{interval}"


def draw_rates(path: Path, results: Sequence[CaseResult]) -> None:
    """Draw the rates of every choice, a panel for each case. Raises as ``save_figure`` does."""
    num_rows = -(-len(results) // _COLUMNS)
    figure = new_figure(5.0 * _COLUMNS, 3.2 * num_rows)
    for number, result in enumerate(results, start=1):
        axes, rates = figure.add_subplot(num_rows, _COLUMNS, number), result.rates
        axes.set_title(str(result.case), fontsize=9)
        axes.bar(list(rates), list(rates.values()), color=[_COLOURS.get(name, "tab:blue") for name in rates])
        axes.axhline(rates[AUTO], color=_COLOURS[AUTO], linewidth=0.8)
        axes.set_ylabel("tokens per second")
        axes.tick_params(axis="x", rotation=90, labelsize=7)
    save_figure(figure, path, "out")
