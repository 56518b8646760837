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
from specgate.errors import InvalidArgument
from specgate.weights import is_quantised
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
        typer.Option(
            metavar="FILE",
            help="JSON lines with the beginnings of texts; one in ten is held out, and judges the draft.",
            show_default="the target's own",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    layers: Annotated[
        int | None, _of_shape(help="The target's layers that it keeps.", show_default="by what they cost here")
    ] = None,
    head_tokens: Annotated[int, _of_shape(help="Frequent tokens that it can propose; 0 is all.")] = _USUAL.head_tokens,
    rows: Annotated[int, _of_length(help="Texts that the target writes.")] = _USUAL.rows,
    row_tokens: Annotated[int, _of_length(help="Tokens per text.")] = _USUAL.row_tokens,
    write_rows: Annotated[int, _of_length(help="Texts written at a time.")] = _USUAL.write_rows,
    steps: Annotated[int, _of_length(help="Optimiser steps, at most.")] = _USUAL.steps,
    step_tokens: Annotated[int, _of_length(help="Tokens per step.")] = _USUAL.step_tokens,
    seed: Annotated[int, _of_length(help="Seed of everything random.")] = _USUAL.seed,
) -> None:
    """Make a small draft of a few of the target's layers, taught by texts that it writes. A killed run resumes."""
    check_model("target", target)
    if is_quantised(target):
        raise InvalidArgument("target", "has codes for weights; a draft is made of numbers")
    recipe = Recipe(target, layers, head_tokens, rows, row_tokens, write_rows, steps, step_tokens, seed)
    given = _token_ids(prompts, target) if prompts else []
    # Here alone, because they bring torch.
    from specgate_lab.train.forms import measured_costs
    from specgate_lab.train.run import make_draft

    log = Console(stderr=True)
    with StageBars(log) as bars:
        report = make_draft(recipe, out, given, device, measured_costs(device, log), bars.show, partial(_print, log))
    _tell(out, report)


def _token_ids(path: Path, target: str) -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(target)
    prompts = read_prompts(path, GenerationRequest(()))
    return [with_token_ids(prompt, tokenizer).prompt_token_ids for prompt in prompts]


def _tell(out: Path, report: dict[str, Any]) -> None:
    size, agreed = f"{report['parameters'] / 1e6:.1f} M parameters", f"{report['greedy_agreement']:.0%}"
    lines = (
        f"{out}: {report['layers']} layers, {size}; "
        f"it agrees with the target at {agreed} of positions in texts held out",
        f"at temperature 1 {report['acceptance_at_temperature_1']:.0%} of its tokens would be accepted",
        f"greedy, γ {report['gamma']}: {report['accepted_per_round']:.2f} accepted a round, "
        f"{report['gain']:.2f} × the target at most",
        "people ask otherwise than a model asks itself; see what it brings to your prompts:",
        f"orchestrator tune --target {report['recipe']['target']} --draft {out} --prompts FILE",
    )
    for line in lines:
        _print(output_console(), line)


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
