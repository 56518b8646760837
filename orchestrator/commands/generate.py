"""``orchestrator generate``: text in, coloured tokens or JSON out."""

import asyncio
import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from orchestrator.commands.jobs import Job, running_jobs
from orchestrator.commands.launch import Pair, open_pair
from orchestrator.commands.model_options import ModelOptions
from orchestrator.commands.option_groups import takes_groups
from orchestrator.commands.prompts import Prompt, capacity_for, read_prompts
from orchestrator.commands.render import Painter, legend, statistics_line, write
from orchestrator.commands.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.commands.results import error_object, result_object
from orchestrator.text import TextTokenizer
from specgate.errors import InvalidArgument, SpecgateError

MAX_CONCURRENCY = 256


@takes_groups
def generate(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Argument(help="The text to go on with.", show_default=False)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with 'prompt' or 'token_ids', and any request field that overrides its flag; - is stdin.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Prompts at the same time.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, in input order.")] = False,
) -> None:
    """Generate text; show which model brought which token."""
    defaults = request_for(models, drafting, sampling)
    if (prompt is None) == (prompts is None):
        raise InvalidArgument("prompt", "give either PROMPT or --prompts FILE")
    todo = [Prompt(defaults, prompt)] if prompts is None else read_prompts(prompts, defaults)
    failed = asyncio.run(_generate(models, todo, concurrency, as_json=json))
    if failed:
        raise typer.Exit(1)


async def _generate(models: ModelOptions, prompts: Sequence[Prompt], concurrency: int, *, as_json: bool) -> int:
    """Return how many prompts failed."""
    log = Console(stderr=True)
    with_draft = any(prompt.request.gamma for prompt in prompts)
    capacity = capacity_for(prompts, concurrency)
    async with open_pair(models, with_draft=with_draft, capacity=capacity, log=log) as pair:
        if as_json:
            return await print_objects(pair, prompts, concurrency)
        return await show_prompts(pair, prompts, concurrency, Console(highlight=False), log)


async def print_objects(pair: Pair, prompts: Sequence[Prompt], concurrency: int) -> int:
    """Print one JSON object a prompt in input order; return how many failed."""
    failed = 0
    async with running_jobs(pair, prompts, concurrency) as jobs:
        for job in jobs:
            outcome = await job.outcome()
            failed += isinstance(outcome, SpecgateError)
            told = error_object(outcome) if isinstance(outcome, SpecgateError) else result_object(outcome)
            print(json_format.dumps(told), flush=True)
    return failed


async def show_prompts(
    pair: Pair, prompts: Sequence[Prompt], concurrency: int, out: Console, log: Console
) -> int:
    """Stream every prompt's tokens in colour, one prompt after the other; return how many failed."""
    out.print(legend(), end="\n\n")
    failed = 0
    async with running_jobs(pair, prompts, concurrency) as jobs:
        for job in jobs:
            await _stream(job, pair.tokenizer, out)
            outcome = await job.outcome()
            if isinstance(outcome, SpecgateError):
                failed += 1
                log.print(f"{outcome.reason}: {outcome}", style="red", markup=False, highlight=False)
            else:
                out.print(statistics_line(outcome), end="\n\n", soft_wrap=True)
    return failed


async def _stream(job: Job, tokenizer: TextTokenizer | None, out: Console) -> None:
    write(out, [Segment(_prompt_text(job.prompt, tokenizer), Style(bold=True))])
    painter = Painter(tokenizer.incremental() if tokenizer else None)
    async for delta in job.deltas():
        write(out, painter.paint(delta))
    out.print()


def _prompt_text(prompt: Prompt, tokenizer: TextTokenizer | None) -> str:
    if prompt.text is None and tokenizer:
        return tokenizer.decode(prompt.token_ids or ())
    return prompt.text or ""
