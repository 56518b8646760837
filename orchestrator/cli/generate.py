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

from orchestrator.cli.jobs import PromptJob, running_jobs
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import Pair, capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts
from orchestrator.terminal.render import Painter, legend, output_console, statistics_line, until_writable, write
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import error_object, result_object
from specgate.errors import InvalidArgument, SpecgateError
from specgate.types import check_range

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
    concurrency: Annotated[int, typer.Option(help=f"Prompts at a time, up to {MAX_CONCURRENCY}.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, in input order.")] = False,
) -> None:
    """Generate text; show which model brought which token."""
    defaults = request_for(models, drafting, sampling)
    check_range("concurrency", concurrency, 1, MAX_CONCURRENCY)
    if (prompt is None) == (prompts is None):
        raise InvalidArgument("PROMPT", "give either PROMPT or --prompts FILE")
    todo = [Prompt(defaults, prompt)] if prompts is None else read_prompts(prompts, defaults)
    failures = asyncio.run(_generate(models, todo, concurrency, as_json=json))
    if failures and prompts is None:
        raise failures[0]
    if failures:
        raise typer.Exit(1)


async def _generate(
    models: ModelOptions, prompts: Sequence[Prompt], concurrency: int, *, as_json: bool
) -> list[SpecgateError]:
    """Return why prompts failed, where they did."""
    log = Console(stderr=True)
    with_draft = any(prompt.request.max_gamma for prompt in prompts)
    capacity = capacity_for(prompts, concurrency)
    async with open_pair(models, with_draft=with_draft, capacity=capacity, log=log) as pair:
        if as_json:
            return await print_objects(pair, prompts, concurrency)
        return await show_prompts(pair, prompts, concurrency, output_console(), log)


async def print_objects(pair: Pair, prompts: Sequence[Prompt], concurrency: int) -> list[SpecgateError]:
    """Print one JSON object a prompt in input order; return why some failed."""
    failures = []
    async with running_jobs(pair, prompts, concurrency) as jobs:
        for job in jobs:
            outcome = await job.outcome()
            if isinstance(outcome, SpecgateError):
                failures.append(outcome)
                told = error_object(outcome)
            else:
                told = result_object(outcome)
            print(json_format.dumps(told), flush=True)
    return failures


async def show_prompts(
    pair: Pair, prompts: Sequence[Prompt], concurrency: int, out: Console, log: Console
) -> list[SpecgateError]:
    """Stream every prompt's tokens in colour, one prompt after the other; return why some failed."""
    out.print(legend(), end="\n\n")
    failures = []
    async with running_jobs(pair, prompts, concurrency) as jobs:
        for number, job in enumerate(jobs, start=1):
            await _stream(job, pair.tokenizer, out)
            outcome = await job.outcome()
            if isinstance(outcome, SpecgateError):
                failures.append(outcome)
                # A lone prompt's failure is the command's own.
                if len(jobs) > 1:
                    told = f"prompt {number}: {outcome}"
                    log.print(told, style="red", markup=False, highlight=False, soft_wrap=True)
            else:
                out.print(statistics_line(outcome), end="\n\n", soft_wrap=True)
    return failures


async def _stream(job: PromptJob, tokenizer: TextTokenizer | None, out: Console) -> None:
    write(out, [Segment(_prompt_text(job.prompt, tokenizer), Style(bold=True))])
    painter = Painter(tokenizer.incremental() if tokenizer else None)
    async for delta in job.deltas():
        await until_writable(out)
        write(out, painter.paint(delta))
    out.print()


def _prompt_text(prompt: Prompt, tokenizer: TextTokenizer | None) -> str:
    if prompt.text is None and tokenizer:
        return tokenizer.decode(prompt.token_ids or ())
    return prompt.text or ""
