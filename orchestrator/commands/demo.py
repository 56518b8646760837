"""``orchestrator demo``: a draft and a target write Python together, how much faster that is, and both behind doors."""

import asyncio
from collections.abc import Sequence

from rich.console import Console

from orchestrator.commands.bench_pair import measure_pair
from orchestrator.commands.bench_prompts import DEMO_PROMPTS
from orchestrator.commands.bench_requests import bench_request
from orchestrator.commands.bench_table import print_rows
from orchestrator.commands.demo_serve import demo_serve
from orchestrator.commands.generate import show_prompts
from orchestrator.commands.launch import open_pair
from orchestrator.commands.model_options import ModelOptions
from orchestrator.commands.option_groups import takes_groups
from orchestrator.commands.prompts import Prompt, capacity_for
from orchestrator.commands.render import output_console
from orchestrator.commands.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.commands.served_child import settings_for
from orchestrator.request import GenerationRequest
from specgate.errors import SpecgateError

DEMO_TOKENS = 64
DEMO_REPEATS = 2
DEMO_BUDGET_S = 30.0
"""On a busy machine one repeat is enough to look at; the promise is two minutes."""


@takes_groups
def demo(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions) -> None:
    """Show the bundled pair at work: coloured tokens, the benchmark's table, and both doors, in under two minutes."""
    measured = bench_request(models, drafting, sampling, DEMO_TOKENS)
    shown = request_for(models, drafting, sampling, DEMO_TOKENS)
    failures = asyncio.run(_demo(models, [Prompt(shown, text) for text in DEMO_PROMPTS], measured))
    if failures:
        raise failures[0]


async def _demo(models: ModelOptions, prompts: Sequence[Prompt], measured: GenerationRequest) -> list[SpecgateError]:
    out, log = output_console(), Console(stderr=True)
    async with open_pair(models, with_draft=True, capacity=capacity_for(prompts, 1), log=log) as pair:
        failures = await show_prompts(pair, prompts, 1, out, log)
        out.print("The same prompts again, in every way to decode, in turns:", style="bold")
        report = await measure_pair(pair, models, prompts, measured, DEMO_REPEATS, log, DEMO_BUDGET_S, assisted=False)
        print_rows(out, report.rows, report.agreement)
    if not (models.verifier or models.drafter):
        await demo_serve(settings_for(models), prompts[0].request, DEMO_PROMPTS[0], pair.tokenizer, out)
    return failures
