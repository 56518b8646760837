"""``orchestrator chat``: a conversation in the terminal, its tokens coloured by source."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.cli.answering import open_answerer
from orchestrator.cli.chat_turns import ChatTurns
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import Capacity
from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.background import BackgroundLoop
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.system_options import SystemOptions
from specgate.errors import InvalidArgument

ANSWER_TOKENS = 512
CHAT_KV_TOKENS = 8192
"""Tokens that services of this command hold, unless a flag says otherwise."""


@takes_groups
def chat(
    models: SystemOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="The system prompt: instructions before the first turn.")
    ] = "",
) -> None:
    """Chat with the target and colour each token by the model that wrote it. /help lists the commands."""
    request = request_for(models, drafting, sampling, ANSWER_TOKENS)
    out, log = output_console(), Console(stderr=True)
    gate = "the system's own" if models.server and drafting.gate is None else str(request.gate)
    opening = open_answerer(
        models,
        says_gate=drafting.gate is not None,
        with_draft=request.max_gamma > 0,
        capacity=Capacity(1, CHAT_KV_TOKENS),
        log=log,
    )
    if models.server is None and models.target_model is not None:
        # Before minutes go into loading it.
        check_model("target", models.target)
        _check_can_chat(TextTokenizer.load(models.target_model, models.tokenizer))
    interactive = sys.stdin.isatty() and out.is_terminal
    with BackgroundLoop() as loop, loop.entered(opening) as answerer:
        if models.server is None:
            _check_can_chat(answerer.tokenizer)
        turns = ChatTurns(answerer, Prompt(request, fits=True), system, gate, out, log)
        if interactive:
            turns.greet()
        for line in _lines(interactive, out):
            if not turns.take(line, loop, stoppable=interactive):
                break
    if turns.num_failed and not interactive:
        raise typer.Exit(1)


def _check_can_chat(tokenizer: TextTokenizer | None) -> None:
    if tokenizer is None or not tokenizer.has_chat_template:
        raise InvalidArgument("target", "has no chat template; give a model with one, or use generate")


def _lines(interactive: bool, out: Console) -> Iterator[str]:
    """Yield what is typed, or piped, line by line. Ctrl-D ends it; Ctrl-C drops the line, if somebody types."""
    with suppress(AttributeError):
        # Bytes that are no text must not end a conversation.
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    if interactive:
        with suppress(ImportError):
            # With it ``input`` knows the arrow keys.
            import readline  # noqa: F401
    while True:
        try:
            yield input("> " if interactive else "")
        except EOFError:
            if interactive:
                out.print()
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            out.print("\n/quit or Ctrl-D leaves", style="dim")
