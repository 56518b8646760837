"""``orchestrator prove``: is what this pair writes what the target alone writes?"""

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
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.results import check_writable, write_json
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.proof.plan import REJECTION_BATCH, REJECTION_TOKENS
from specgate_lab.proof.report import Proof
from specgate_lab.proof.runs import PATIENT, Prover, Sizes
from specgate_lab.proof.table import print_proof
from specgate_lab.provenance import provenance
from specgate_lab.report import counting_bar
from specgate_lab.workload import BENCH_PROMPTS

DEFAULT_TOKENS = 32
DEFAULT_SAMPLES = 500
MIN_SAMPLES = 50
MAX_SAMPLES = 1_000_000
MAX_TOKENS = 1 << 20


@takes_groups
def prove(
    models: ModelOptions,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON lines with 'prompt' or 'token_ids'.", show_default="short Python beginnings"
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each compared text.")] = DEFAULT_TOKENS,
    samples: Annotated[
        int,
        typer.Option(
            help="Texts per prompt and side for rejection; four times as many halve the detectable deviation."
        ),
    ] = DEFAULT_SAMPLES,
    hf: Annotated[
        bool, typer.Option("--hf/--no-hf", help="Also compare the target alone with `generate` of transformers.")
    ] = True,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")] = None,
) -> None:
    """Prove that the pair writes what its target alone writes. Exit code 0 if it does, 1 if not or undecided."""
    check_range("max_tokens", max_tokens, 1, MAX_TOKENS)
    check_range("samples", samples, MIN_SAMPLES, MAX_SAMPLES)
    todo = _prompts(prompts, GenerationRequest((), max_tokens=max(max_tokens, REJECTION_TOKENS)))
    if json:
        # A file that cannot be written is told now, not after minutes.
        check_writable(json)
    origin = provenance()
    proof = asyncio.run(_prove(models, todo, Sizes(max_tokens, samples), hf=hf))
    if json:
        write_json(json, {"provenance": origin, **proof.to_object()})
    print_proof(output_console(), proof)
    if not proof.holds:
        raise typer.Exit(1)


def _prompts(file: Path | None, request: GenerationRequest) -> list[Prompt]:
    if file is None:
        return [Prompt(request, text) for text in BENCH_PROMPTS]
    todo = read_prompts(file, request)
    if any(prompt.request != request for prompt in todo):
        raise InvalidArgument("prompts", f"{file}: a proof sets every field of its requests; give the prompts alone")
    return todo


async def _prove(models: ModelOptions, prompts: Sequence[Prompt], sizes: Sizes, *, hf: bool) -> Proof:
    log = Console(stderr=True)
    capacity = capacity_for(prompts, 2 * REJECTION_BATCH)
    async with open_pair(models, with_draft=True, capacity=capacity, log=log, timeouts=PATIENT) as pair:
        prompt_ids = [with_token_ids(prompt, pair.tokenizer).prompt_token_ids for prompt in prompts]
        with counting_bar(log, "proving", sizes.num_texts(len(prompts))) as on_text:
            return await Prover(pair, models, prompt_ids, sizes, on_text).prove(hf=hf)
