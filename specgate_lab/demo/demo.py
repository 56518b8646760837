"""``orchestrator demo``: the bundled pair generates, is measured, and is served over HTTP and gRPC."""

from collections.abc import Sequence

import uvloop
from rich.console import Console

from orchestrator.cli.answering import PairAnswerer
from orchestrator.cli.generate import show_prompts
from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.local.served_child import settings_for
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from specgate.errors import SpecgateError
from specgate_lab.bench.pair import measure_pair
from specgate_lab.bench.table import print_rows
from specgate_lab.demo.demo_serve import demo_serve
from specgate_lab.variants import Traffic
from specgate_lab.workload import DEMO_PROMPTS, bench_request

DEMO_TOKENS = 64
DEMO_REPEATS = 2
DEMO_BUDGET_S = 30.0
"""One repeat keeps the demo within two minutes on a busy machine."""


@takes_groups
def demo(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions) -> None:
    """Show the bundled pair: coloured tokens, a benchmark, then HTTP and gRPC; in under two minutes."""
    models.check_has_services("demo")
    measured = bench_request(models, drafting, sampling, DEMO_TOKENS)
    shown = request_for(models, drafting, sampling, DEMO_TOKENS)
    failures = uvloop.run(_demo(models, [Prompt(shown, text) for text in DEMO_PROMPTS], measured))
    if failures:
        raise failures[0]


async def _demo(models: ModelOptions, prompts: Sequence[Prompt], measured: GenerationRequest) -> list[SpecgateError]:
    out, log = output_console(), Console(stderr=True)
    traffic, capacity = Traffic(), capacity_for(prompts, 1)
    async with open_pair(models, with_draft=True, capacity=capacity, log=log, wrap_call=traffic.counted) as pair:
        failures = await show_prompts(PairAnswerer(pair), prompts, 1, out, log)
        out.print("The same prompts again, in every way to decode, in turns:", style="bold")
        report = await measure_pair(
            pair, models, prompts, measured, DEMO_REPEATS, log, traffic, DEMO_BUDGET_S, assisted=False
        )
        print_rows(out, report.rows, report.agreement)
    if not (models.verifier or models.drafter):
        await demo_serve(settings_for(models), prompts[0].request, DEMO_PROMPTS[0], pair.tokenizer, out)
    return failures
