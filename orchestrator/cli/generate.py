"""``orchestrator generate``: continue prompts and print coloured tokens or JSON."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from orchestrator.cli.answering import Answerer, open_answerer
from orchestrator.cli.jobs import PromptJob, running_jobs
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import capacity_for
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts
from orchestrator.terminal.render import legend, output_console, statistics_line, until_writable, write
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import error_object, result_object
from orchestrator.terminal.system_options import SystemOptions
from specgate.errors import InvalidArgument, SpecgateError
from specgate.types import check_range

MAX_CONCURRENCY = 256


@takes_groups
def generate(
    system: SystemOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue.", show_default=False)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with 'prompt' or 'token_ids'; any other request field overrides its flag. - is stdin.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(help=f"Prompts that run at the same time, up to {MAX_CONCURRENCY}.")] = 1,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each prompt, in input order.")
    ] = False,
) -> None:
    """Generate text and colour each token by the model that wrote it."""
    defaults = request_for(system, drafting, sampling)
    check_range("concurrency", concurrency, 1, MAX_CONCURRENCY)
    if (prompt is None) == (prompts is None):
        raise InvalidArgument("PROMPT", "give either PROMPT or --prompts FILE")
    todo = [Prompt(defaults, prompt)] if prompts is None else read_prompts(prompts, defaults)
    failures = uvloop.run(_generate(system, todo, concurrency, as_json=json, says_gate=drafting.gate is not None))
    if failures and prompts is None:
        raise failures[0]
    if failures:
        raise typer.Exit(1)


async def _generate(
    system: SystemOptions, prompts: Sequence[Prompt], concurrency: int, *, as_json: bool, says_gate: bool
) -> list[SpecgateError]:
    """Generate for all prompts; return the errors of those that failed."""
    log = Console(stderr=True)
    with_draft = any(prompt.request.max_gamma for prompt in prompts)
    capacity = capacity_for(prompts, concurrency)
    opening = open_answerer(system, says_gate=says_gate, with_draft=with_draft, capacity=capacity, log=log)
    async with opening as answerer:
        if as_json:
            return await print_objects(answerer, prompts, concurrency)
        return await show_prompts(answerer, prompts, concurrency, output_console(), log)


async def print_objects(answerer: Answerer, prompts: Sequence[Prompt], concurrency: int) -> list[SpecgateError]:
    """Print one JSON object for each prompt in input order; return the errors of those that failed."""
    failures = []
    async with running_jobs(answerer, prompts, concurrency) as jobs:
        for job in jobs:
            outcome = await job.outcome()
            if isinstance(outcome, SpecgateError):
                failures.append(outcome)
                shown = error_object(outcome)
            else:
                shown = result_object(outcome)
            print(json_format.dumps(shown), flush=True)
    return failures


async def show_prompts(
    answerer: Answerer, prompts: Sequence[Prompt], concurrency: int, out: Console, log: Console
) -> list[SpecgateError]:
    """Print every prompt's tokens in colour, one prompt after the other; return the errors of those that failed."""
    out.print(legend(), end="\n\n")
    failures = []
    async with running_jobs(answerer, prompts, concurrency) as jobs:
        for number, job in enumerate(jobs, start=1):
            await _stream(job, answerer, out)
            outcome = await job.outcome()
            if isinstance(outcome, SpecgateError):
                failures.append(outcome)
                # The error of a single prompt is the command's error.
                if len(jobs) > 1:
                    problem = f"prompt {number}: {outcome}"
                    log.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
            else:
                out.print(statistics_line(outcome), end="\n\n", soft_wrap=True)
    return failures


async def _stream(job: PromptJob, answerer: Answerer, out: Console) -> None:
    write(out, [Segment(_prompt_text(job.prompt, answerer.tokenizer), Style(bold=True))])
    painter = answerer.painter(job.prompt)
    async for delta in job.deltas():
        await until_writable(out)
        write(out, painter.paint(delta))
    write(out, painter.finish())
    out.print()


def _prompt_text(prompt: Prompt, tokenizer: TextTokenizer | None) -> str:
    if prompt.text is None and tokenizer:
        return tokenizer.prompt_text(prompt.token_ids or ())
    return prompt.text or ""
