"""``orchestrator train-draft``: a small draft for a target that has no sibling, distilled from texts it writes."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.terminal.model_options import check_model
from orchestrator.terminal.prompts import read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from specgate_lab.progress import StageBars
from specgate_lab.train.recipe import Recipe

_SHAPE, _LENGTH = "The draft", "How long"
_USUAL = Recipe("")


def train_draft(
    target: Annotated[str, typer.Option(metavar="PATH", help="Target model, a folder or a hub id.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the draft; the same command resumes it.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with the beginnings of texts.", show_default="the target's own"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    layers: Annotated[int, typer.Option(help="Decoder layers.", rich_help_panel=_SHAPE)] = _USUAL.layers,
    hidden_size: Annotated[
        int | None, typer.Option(help="Hidden size.", show_default="half the target's", rich_help_panel=_SHAPE)
    ] = None,
    rows: Annotated[int, typer.Option(help="Texts that the target writes.", rich_help_panel=_LENGTH)] = _USUAL.rows,
    row_tokens: Annotated[int, typer.Option(help="Tokens per text.", rich_help_panel=_LENGTH)] = _USUAL.row_tokens,
    write_rows: Annotated[
        int, typer.Option(help="Texts written at a time.", rich_help_panel=_LENGTH)
    ] = _USUAL.write_rows,
    steps: Annotated[int, typer.Option(help="Optimiser steps.", rich_help_panel=_LENGTH)] = _USUAL.steps,
    step_tokens: Annotated[int, typer.Option(help="Tokens per step.", rich_help_panel=_LENGTH)] = _USUAL.step_tokens,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", rich_help_panel=_LENGTH)] = _USUAL.seed,
) -> None:
    """Distil a small draft from texts that the target writes. A killed run resumes where it stopped."""
    check_model("target", target)
    recipe = Recipe(target, layers, hidden_size, rows, row_tokens, write_rows, steps, step_tokens, seed)
    given = _token_ids(prompts, target) if prompts else []
    # Here alone, because it needs torch.
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
