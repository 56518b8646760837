"""``orchestrator prove``: does this pair write what its target alone writes?"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.options import PromptOptions
from specgate_lab.progress import counting_bar
from specgate_lab.proof.plan import REJECTION_BATCH, REJECTION_TOKENS
from specgate_lab.proof.report import Proof
from specgate_lab.proof.runs import PATIENT, Prover, Sizes
from specgate_lab.report import ResultsFile

MIN_SAMPLES, MAX_SAMPLES = 50, 1_000_000
MAX_TOKENS = 1 << 20


@takes_groups
def prove(
    models: ModelOptions,
    prompts: PromptOptions,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each compared text.")] = 32,
    samples: Annotated[
        int,
        typer.Option(
            help="Texts per prompt and side for rejection; four times as many halve the detectable deviation."
        ),
    ] = 500,
    hf: Annotated[
        bool, typer.Option("--hf/--no-hf", help="Also compare the target alone with `generate` of transformers.")
    ] = True,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")] = None,
) -> None:
    """Prove that the pair writes what its target alone writes. Exit code 0 if it does, 1 if not or undecided."""
    check_range("max_tokens", max_tokens, 1, MAX_TOKENS)
    check_range("samples", samples, MIN_SAMPLES, MAX_SAMPLES)
    request = GenerationRequest((), max_tokens=max(max_tokens, REJECTION_TOKENS))
    todo = prompts.read(request)
    if any(prompt.request != request for prompt in todo):
        problem = f"{prompts.prompts}: a proof sets every field of its requests; give the prompts alone"
        raise InvalidArgument("prompts", problem)
    file = ResultsFile.writable(json) if json else None
    proof = asyncio.run(_prove(models, todo, Sizes(max_tokens, samples), hf=hf))
    if file:
        file.write(proof.to_object())
    proof.print(output_console())
    if not proof.holds:
        raise typer.Exit(1)


async def _prove(models: ModelOptions, prompts: Sequence[Prompt], sizes: Sizes, *, hf: bool) -> Proof:
    log, capacity = Console(stderr=True), capacity_for(prompts, 2 * REJECTION_BATCH)
    async with open_pair(models, with_draft=True, capacity=capacity, log=log, timeouts=PATIENT) as pair:
        prompt_ids = [with_token_ids(prompt, pair.tokenizer).prompt_token_ids for prompt in prompts]
        with counting_bar(log, "proving", sizes.num_texts(len(prompts))) as on_text:
            return await Prover(pair, models, prompt_ids, sizes, on_text).prove(hf=hf)
