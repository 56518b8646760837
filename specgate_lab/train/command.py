"""``orchestrator train-draft``: a small draft for a target that has no sibling, distilled from texts it writes."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.prompts import read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from specgate_lab.progress import StageBars
from specgate_lab.train.recipe import Recipe

_of_shape = partial(typer.Option, rich_help_panel="The draft")
_of_length = partial(typer.Option, rich_help_panel="How long")
_USUAL = Recipe("")


def train_draft(
    target: Annotated[str, typer.Option(metavar="PATH", help="Target model, a folder or a hub id.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the draft; the same command resumes it.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with the beginnings of texts.", show_default="the target's own"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    layers: Annotated[int, _of_shape(help="Decoder layers.")] = _USUAL.layers,
    hidden_size: Annotated[int | None, _of_shape(help="Hidden size.", show_default="half the target's")] = None,
    rows: Annotated[int, _of_length(help="Texts that the target writes.")] = _USUAL.rows,
    row_tokens: Annotated[int, _of_length(help="Tokens per text.")] = _USUAL.row_tokens,
    write_rows: Annotated[int, _of_length(help="Texts written at a time.")] = _USUAL.write_rows,
    steps: Annotated[int, _of_length(help="Optimiser steps.")] = _USUAL.steps,
    step_tokens: Annotated[int, _of_length(help="Tokens per step.")] = _USUAL.step_tokens,
    seed: Annotated[int, _of_length(help="Seed of everything random.")] = _USUAL.seed,
) -> None:
    """Distil a small draft from texts that the target writes. A killed run resumes where it stopped."""
    check_model("target", target)
    recipe = Recipe(target, layers, hidden_size, rows, row_tokens, write_rows, steps, step_tokens, seed)
    given = _token_ids(prompts, target) if prompts else []
    # Here alone, because it brings torch.
    from specgate_lab.train.run import make_draft

    with StageBars(Console(stderr=True)) as bars:
        report = make_draft(recipe, out, given, device, bars.show)
    _tell(out, report)


def _token_ids(path: Path, target: str) -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(target)
    prompts = read_prompts(path, GenerationRequest(()))
    return [with_token_ids(prompt, tokenizer).prompt_token_ids for prompt in prompts]


def _tell(out: Path, report: dict[str, Any]) -> None:
    size, agreed = f"{report['parameters'] / 1e6:.1f} M parameters", f"{report['greedy_agreement']:.0%}"
    lines = (
        f"{out}: {size}; its likeliest token is the target's at {agreed} of the positions of new texts",
        f"{report['bits_per_token']:.2f} bits a token of texts that the target sampled, "
        f"where the target has {report['target_bits_per_token']:.2f}",
        f"see what it brings: orchestrator tune --target {report['recipe']['target']} --draft {out}",
    )
    for line in lines:
        output_console().print(line, highlight=False, soft_wrap=True, markup=False)
