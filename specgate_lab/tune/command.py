"""``orchestrator tune``: what to draft with on the user's prompts, or whether to draft at all."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
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
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod, Verification, check_range
from specgate_lab.options import PromptOptions, make_folder, names_of
from specgate_lab.progress import StageBars, print_files
from specgate_lab.report import ResultsFile, can_draw
from specgate_lab.tune.advice import Advice, FinalRound, advise, finalists
from specgate_lab.tune.candidates import DrafterChoice, default_choice, drafters_of
from specgate_lab.tune.compare import SHORT_PROMPTS, Comparison, two_modes
from specgate_lab.tune.placement import placement
from specgate_lab.tune.recording import few_enough, record_answers, spread
from specgate_lab.tune.report import draw_advice, print_choices, write_config
from specgate_lab.tune.versus_target import of_length, seeded


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The size of the comparison, and its files.

    Raises:
        InvalidArgument: a value is outside its range, or there is no such source; names the flag.
    """

    sources: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD,...",
            help=f"Draft sources to try: some of {', '.join(DraftMethod)}.",
            show_default="all that there can be",
        ),
    ] = None
    source_skip: Annotated[str | None, typer.Option(metavar="FILE", help="Skip file for the source layer-skip.")] = None
    repeats: Annotated[int, typer.Option(help="Runs of each finalist, within --budget-s.")] = 5
    budget_s: Annotated[
        float, typer.Option(metavar="S", help="No finalist starts another run after so many seconds.")
    ] = 180.0
    allow_mode: Annotated[
        bool,
        typer.Option(
            "--allow-mode", help="Let the configuration change the verification mode, and so what a seed gives."
        ),
    ] = False
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of advice.json, advice.png and serve.yaml.")] = (
        Path("tune")
    )

    def __post_init__(self) -> None:
        check_range("repeats", self.repeats, 1, 1000)
        check_range("budget_s", self.budget_s, 1.0, 1e6)
        names_of("sources", self.sources, DraftMethod)

    @property
    def methods(self) -> tuple[DraftMethod, ...]:
        """The sources that were asked for; none where all are tried."""
        return tuple(map(DraftMethod, names_of("sources", self.sources, DraftMethod)))


@takes_groups
def tune(
    context: typer.Context,
    models: ModelOptions,
    sampling: SamplingOptions,
    options: TuneOptions,
    prompts: PromptOptions,
    verification: Annotated[
        Verification, typer.Option(help="How draft tokens are accepted. Both keep the target's distribution.")
    ] = Verification.SHARED_NOISE,
) -> None:
    """Measure on your prompts which draft source, gate and run-ahead are fastest, and write a configuration.

    The advice may be to draft nothing.
    """
    if context.invoked_subcommand:
        return
    _check_models(models)
    drafters = drafters_of(models, options.source_skip, options.methods)
    request = request_for(models, DraftingOptions(verification=verification), sampling)
    log = Console(stderr=True)
    todo = few_enough(prompts.read(request), log)
    make_folder("out", options.out)
    file = ResultsFile(options.out / "advice.json", "out")
    with StageBars(log) as bars:
        advice = asyncio.run(_compare(models, options, todo, drafters, verification, bars, log))
    # Printed first: a file may fail.
    print_choices(output_console(), advice)
    for line in advice.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)
    file.write(advice.to_object())
    files = [file.path, options.out / "serve.yaml"]
    write_config(files[1], advice, models, options.source_skip)
    if can_draw():
        files.append(options.out / "advice.png")
        draw_advice(files[-1], advice)
    print_files(log, files)


def _check_models(models: ModelOptions) -> None:
    """Raise InvalidArgument where services or sources are named that this command starts by itself."""
    models.check_has_services("tune")
    if models.verifier or models.drafter:
        raise InvalidArgument("verifier" if models.verifier else "drafter", "is started here; give --target, --draft")
    if "method" in models.service.given:
        raise InvalidArgument("method", "is what is to be found out; --sources says which are tried")
    for flag, model in (("target", models.target), ("draft", models.draft)):
        check_model(flag, model)


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
        recording = await record_answers(pair.orchestrator, requests, bars.counter("target writes", len(requests)))
        requests = of_length(requests, recording.lengths)
        comparison = Comparison(pair, models, options.source_skip, capacity, log)
        tried = await comparison.first_round(drafters, requests, bars)
        choices = finalists(tried, default)
        num_variants = 1 + len(choices) + len(two_modes(choices, requests))
        some = _affordable(requests, recording.alone_us * num_variants, options.budget_s, log)
        on_turn = bars.counter("the best ones", num_variants * len(some) * options.repeats)
        samples = await comparison.final_round(choices, some, options.repeats, options.budget_s, on_turn)
    final = FinalRound(choices, samples, verification, default, frozenset(comparison.texts_differ))
    return advise(tried, final, drafters, allow_mode=options.allow_mode)


def _affordable(
    requests: Sequence[GenerationRequest], token_us: float, budget_s: float, log: Console
) -> Sequence[GenerationRequest]:
    """Return as many requests, evenly spread, as all variants answer once in time; ``token_us`` is a token of all."""
    seconds = sum(one.max_tokens for one in requests) * token_us / 1e6
    count = max(SHORT_PROMPTS, int(len(requests) * budget_s / seconds))
    if count >= len(requests):
        return requests
    log.print(f"the best ones answer {count} of {len(requests)} prompts: raise --budget-s for more", style="yellow")
    return spread(requests, count)


app = typer.Typer(name="tune", invoke_without_command=True, callback=tune, help=tune.__doc__)
app.command()(placement)
