"""``orchestrator tune``: what to draft with on the user's prompts, or whether to draft at all."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import write_json
from specgate.errors import InvalidArgument
from specgate.types import Verification
from specgate_lab.provenance import provenance
from specgate_lab.report import can_draw
from specgate_lab.tune.layers.record import check_lengths, record_texts
from specgate_lab.tune.pair.advice import Advice, FinalRound, advise, finalists, to_object
from specgate_lab.tune.pair.candidates import DrafterChoice, choices_of, default_choice, drafters_of
from specgate_lab.tune.pair.compare import SHORT_PROMPTS, Comparison, Tried, short, two_modes
from specgate_lab.tune.pair.options import TuneOptions
from specgate_lab.tune.pair.plots import draw_advice
from specgate_lab.tune.pair.serve_config import write_config
from specgate_lab.tune.pair.table import print_choices
from specgate_lab.tune.progress import StageBars, tell_files
from specgate_lab.tune.prompts import chosen_prompts, spread
from specgate_lab.tune.versus_target import of_length, seeded


@takes_groups
def tune_pair(
    context: typer.Context,
    models: ModelOptions,
    sampling: SamplingOptions,
    options: TuneOptions,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts: JSON lines with 'prompt' or 'token_ids'.",
            show_default="short Python beginnings",
        ),
    ] = None,
    verification: Annotated[
        Verification, typer.Option(help="How draft tokens are accepted. Both keep the target's distribution.")
    ] = Verification.SHARED_NOISE,
) -> None:
    """Measure on your prompts which draft source, gate and run-ahead are fastest, and write a configuration.

    The advice may be to draft nothing. `tune layers` makes a draft of the target's own blocks.
    """
    if context.invoked_subcommand is not None:
        _refuse_flags_before(context)
        return
    models.check_has_services("tune")
    if models.verifier or models.drafter:
        raise InvalidArgument("verifier" if models.verifier else "drafter", "is started here; give --target, --draft")
    if "method" in models.service.given:
        raise InvalidArgument("method", "is what is to be found out; --sources says which are tried")
    for flag, model in (("target", models.target), ("draft", models.draft)):
        check_model(flag, model)
    drafters = drafters_of(models, options.source_skip, options.methods)
    request = request_for(models, DraftingOptions(verification=verification), sampling)
    todo = chosen_prompts(prompts, request, Console(stderr=True))
    options.prepare()
    log = Console(stderr=True)
    with StageBars(log) as bars:
        advice = asyncio.run(_compare(models, options, todo, drafters, verification, bars, log))
    print_choices(output_console(), advice)
    for line in advice.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)
    # What cannot be written has been told.
    _write(options, advice, models, log)


def _refuse_flags_before(context: typer.Context) -> None:
    """Raise InvalidArgument for a flag that would be taken from a command that follows."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument(name, f"goes behind `{context.invoked_subcommand}`")


def _write(options: TuneOptions, advice: Advice, models: ModelOptions, log: Console) -> None:
    files = [options.out / "advice.json", options.out / "serve.yaml"]
    write_json(files[0], {"provenance": provenance(), **to_object(advice)}, "out")
    write_config(files[1], advice, models, options.source_skip)
    if can_draw():
        files.append(options.out / "advice.png")
        draw_advice(files[-1], advice)
    tell_files(log, files)


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
        recording = await record_texts(pair.orchestrator, requests, bars.counter("target writes", len(requests)))
        requests = of_length(requests, [len(text.answer) for text in recording.texts])
        comparison = Comparison(pair, models, options.source_skip, capacity, log)
        tried = await _first_rounds(comparison, drafters, requests, bars)
        choices = finalists(tried, default)
        num_ways = 1 + len(choices) + len(two_modes(choices, requests))
        some = _affordable(requests, recording.alone_us * num_ways, options.budget_s, log)
        on_turn = bars.counter("the best ones", num_ways * len(some) * options.repeats)
        samples = await comparison.final_round(choices, some, options.repeats, options.budget_s, on_turn)
    final = FinalRound(choices, samples, verification, default, frozenset(comparison.texts_differ))
    return advise(tried, final, drafters, allow_mode=options.allow_mode)


def _affordable(
    requests: Sequence[GenerationRequest], token_us: float, budget_s: float, log: Console
) -> Sequence[GenerationRequest]:
    """Return as many requests, evenly spread, as all ways answer once in time; ``token_us`` is a token of each way."""
    seconds = sum(one.max_tokens for one in requests) * token_us / 1e6
    count = max(SHORT_PROMPTS, int(len(requests) * budget_s / seconds))
    if count >= len(requests):
        return requests
    log.print(f"the best ones answer {count} of {len(requests)} prompts: raise --budget-s for more", style="yellow")
    return spread(requests, count)


async def _first_rounds(
    comparison: Comparison, drafters: Sequence[DrafterChoice], requests: Sequence[GenerationRequest], bars: StageBars
) -> list[Tried]:
    few, tried = short(requests), list[Tried]()
    total = sum(len(choices_of(drafter)) + 1 for drafter in drafters) * len(few)
    on_turn: Callable[[], None] = bars.counter("every way to draft", total)
    for drafter in drafters:
        tried += await comparison.first_round(drafter, few, on_turn)
    return tried
