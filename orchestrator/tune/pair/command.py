"""``orchestrator tune``: what to draft with on the user's prompts, or whether to draft at all."""

import asyncio
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.bench.reports.provenance import provenance
from orchestrator.bench.workload.prompts import BENCH_PROMPTS
from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions, check_model
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import write_json
from orchestrator.tune.layers.record import check_lengths
from orchestrator.tune.pair.advice import Advice, advise, finalists, to_object
from orchestrator.tune.pair.candidates import DrafterChoice, choices_of, default_choice, drafters_of
from orchestrator.tune.pair.compare import Comparison, Tried, short
from orchestrator.tune.pair.options import TuneOptions
from orchestrator.tune.pair.plots import draw_advice
from orchestrator.tune.pair.serve_config import write_config
from orchestrator.tune.pair.table import print_choices
from orchestrator.tune.progress import StageBars
from orchestrator.tune.versus_target import seeded
from specgate.errors import InvalidArgument
from specgate.types import Verification


@takes_groups
def tune_pair(
    context: typer.Context,
    models: ModelOptions,
    sampling: SamplingOptions,
    options: TuneOptions,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines.", show_default="short Python beginnings")
    ] = None,
    verification: Annotated[
        Verification, typer.Option(help="How draft tokens are accepted; both are exact.")
    ] = Verification.SHARED_NOISE,
) -> None:
    """Measure on your prompts which drafts to use, under which gate, with run-ahead or not; or say to draft none.

    `tune layers` searches for blocks of the target to leave out, so that it drafts for itself.
    """
    if context.invoked_subcommand is not None:
        return
    if models.verifier or models.drafter:
        raise InvalidArgument("verifier" if models.verifier else "drafter", "is started here; give --target, --draft")
    if "method" in models.service.given:
        raise InvalidArgument("method", "is what is to be found out; --sources says which are tried")
    for flag, model in (("target", models.target), ("draft", models.draft)):
        check_model(flag, model)
    drafters = drafters_of(models, options.source_skip, options.methods)
    request = request_for(models, DraftingOptions(verification=verification), sampling)
    todo = read_prompts(prompts, request) if prompts else [Prompt(request, text) for text in BENCH_PROMPTS]
    options.prepare()
    log = Console(stderr=True)
    with StageBars(log) as bars:
        advice = asyncio.run(_compare(models, options, todo, drafters, verification, bars, log))
    _write(options, advice, models, log)
    print_choices(output_console(), advice)
    for line in advice.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _write(options: TuneOptions, advice: Advice, models: ModelOptions, log: Console) -> None:
    files = [options.out / "advice.json", options.out / "serve.yaml"]
    write_json(files[0], {"provenance": provenance(), **to_object(advice)}, "out")
    write_config(files[1], advice, models, options.source_skip)
    if find_spec("matplotlib") is not None:
        files.append(options.out / "advice.png")
        draw_advice(files[-1], advice)
    told = ", ".join(map(str, files))
    log.print(f"written: {told}", style="dim", markup=False, highlight=False, soft_wrap=True)


async def _compare(
    models: ModelOptions,
    options: TuneOptions,
    prompts: Sequence[Prompt],
    drafters: Sequence[DrafterChoice],
    verification: Verification,
    bars: StageBars,
    log: Console,
) -> Advice:
    capacity, default = capacity_for(prompts, 1), default_choice(models)
    async with open_pair(models, with_draft=False, capacity=capacity, log=log) as pair:
        requests = seeded([with_token_ids(prompt, pair.tokenizer) for prompt in prompts])
        check_lengths(requests, pair.orchestrator.target_info.context_length)
        comparison = Comparison(pair, models, options.source_skip, capacity, log)
        tried = await _first_rounds(comparison, drafters, requests, bars)
        choices = finalists(tried, default)
        num_ways = len(choices) + 1 + (not requests[0].sampling.greedy)
        on_turn = bars.counter("the best ones", num_ways * len(requests) * options.repeats)
        samples = await comparison.final_round(choices, requests, options.repeats, options.budget_s, on_turn)
    if comparison.texts_differ:
        told = ", ".join(sorted(comparison.texts_differ))
        log.print(f"texts were not the target's with: {told}", style="red", markup=False, soft_wrap=True)
    return advise(tried, choices, samples, default, verification, allow_mode=options.allow_mode)


async def _first_rounds(
    comparison: Comparison, drafters: Sequence[DrafterChoice], requests: Sequence[GenerationRequest], bars: StageBars
) -> list[Tried]:
    few, tried = short(requests), list[Tried]()
    total = sum(len(choices_of(drafter)) + 1 for drafter in drafters) * len(few)
    on_turn: Callable[[], None] = bars.counter("every way to draft", total)
    for drafter in drafters:
        tried += await comparison.first_round(drafter, few, on_turn)
    return tried
