"""The turns and slash commands of a chat."""

import asyncio
import time
from dataclasses import replace

from rich.console import Console

from orchestrator.cli.answering import Answerer
from orchestrator.cli.conversation import Conversation, stats_table
from orchestrator.cli.jobs import PromptJob
from orchestrator.decode.request import GenerationStats
from orchestrator.terminal.background import BackgroundLoop
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import legend, until_writable, write
from orchestrator.terminal.results import Collector, Result
from specgate.errors import InvalidArgument, SpecgateError

HELP = """\
/stats        speed and token sources of the last answer and of the whole chat
/retry        ask the last turn again, without its answer
/reset        start a new conversation
/system TEXT  set the system prompt from the next answer on; without TEXT remove it
/help         show this list
/quit         leave; so does Ctrl-D
Ctrl-C        stop the answer and keep its text in the conversation
//TEXT        send a turn that begins with one slash\
"""
_CANNOT_CHAT = ("chat.messages", "prompt")
"""The fields that a system without a chat template or a tokenizer refuses."""


class ChatTurns:
    """One conversation on the terminal.

    Args:
        asking: the request of each turn; the conversation adds its messages.
        gate: its name in ``/stats``.
    """

    def __init__(self, answerer: Answerer, asking: Prompt, system: str, gate: str, out: Console, log: Console) -> None:
        self.num_failed = 0
        """Turns without a whole answer, except those that the user stopped."""
        self._answerer = answerer
        self._asking = asking
        self._gate = gate
        self._out = out
        self._log = log
        self._conversation = Conversation(system)
        self._refused: str | None = None
        self._collector = Collector()

    def greet(self) -> None:
        """Print the legend of the colours and the way to the help."""
        self._out.print(legend())
        self._out.print("/help lists the commands", style="dim")

    def take(self, line: str, loop: BackgroundLoop, *, stoppable: bool) -> bool:
        """Do what a line says; return whether the chat goes on.

        Args:
            stoppable: Ctrl-C ends the answer, and not the command.

        Raises:
            InvalidArgument: the model cannot chat.
            KeyboardInterrupt: Ctrl-C, where it is not ``stoppable``.
        """
        if not line.strip():
            return True
        if line.startswith("/") and not line.startswith("//"):
            return self._command(line.strip(), loop, stoppable=stoppable)
        self._turn(line.removeprefix("/") if line.startswith("//") else line, loop, stoppable=stoppable)
        return True

    def _command(self, line: str, loop: BackgroundLoop, *, stoppable: bool) -> bool:
        name, _, text = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                self._out.print(HELP, legend(), sep="\n", markup=False)
            case "/stats":
                self._show_stats()
            case "/reset":
                self._conversation.reset()
                self._note("a new conversation")
            case "/system":
                self._conversation.system = text.strip()
                self._note("the system prompt is set" if text.strip() else "the system prompt is removed")
            case "/retry":
                self._retry(loop, stoppable=stoppable)
            case _:
                self._tell(f"unknown command {name}; /help lists the commands")
        return True

    def _show_stats(self) -> None:
        if self._conversation.results:
            self._out.print(stats_table(self._conversation.results, self._gate))
        else:
            self._note("no answer yet")

    def _retry(self, loop: BackgroundLoop, *, stoppable: bool) -> None:
        text = self._conversation.take_back() if self._refused is None else self._refused
        if text is None:
            self._note("there is no turn to ask again")
        else:
            self._turn(text, loop, stoppable=stoppable)

    def _turn(self, text: str, loop: BackgroundLoop, *, stoppable: bool) -> None:
        messages = self._conversation.asked_with(text)
        self._refused, self._collector = None, Collector()
        try:
            outcome = loop.run(self._answer(replace(self._asking, messages=messages)))
        except KeyboardInterrupt:
            self._out.print()
            if not stoppable:
                raise
            self._stopped(text)
            return
        self._out.print()
        if isinstance(outcome, Result):
            self._conversation.add(text, outcome)
            return
        if isinstance(outcome, InvalidArgument) and outcome.field in _CANNOT_CHAT and len(messages) == 1:
            raise outcome
        self.num_failed += 1
        self._refused = text
        self._tell(_error_line(outcome))

    async def _answer(self, prompt: Prompt) -> Result | SpecgateError:
        """Show an answer as it comes. Cancelled, it frees what it holds; what came is in the collector."""
        job = PromptJob(self._answerer, prompt, asyncio.Semaphore(1))
        painter = self._answerer.painter(prompt)
        try:
            async for delta in job.deltas():
                self._collector.add(delta, time.perf_counter())
                await until_writable(self._out)
                write(self._out, painter.paint(delta))
            return await job.outcome()
        finally:
            await job.cancel()

    def _stopped(self, text: str) -> None:
        # An answer that is not read to its end has no statistics.
        result = self._collector.result(GenerationStats())
        if result.text:
            self._conversation.add(text, result)
            self._note("stopped; the text stays in the conversation")
        else:
            self._refused = text
            self._note("stopped before the first token; the turn is removed")

    def _note(self, text: str) -> None:
        self._out.print(text, style="dim", markup=False)

    def _tell(self, problem: str) -> None:
        self._log.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)


def _error_line(error: SpecgateError) -> str:
    """Return the error of a failed turn, in one line."""
    said, hint = str(error), ""
    if isinstance(error, InvalidArgument):
        said = f"the conversation is too long: {error}" if error.field.startswith("chat (tokens)") else said
        hint = "; /reset starts a new conversation"
    return f"{said}{hint}. The turn is removed; /retry asks it again."
