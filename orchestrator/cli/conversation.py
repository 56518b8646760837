"""A conversation: its messages, the next request, and the statistics."""

from collections.abc import Sequence
from operator import itemgetter

from rich.table import Table

from orchestrator.terminal.results import Result
from orchestrator.terminal.tables import number, table_of
from specgate.client import ChatMessage
from specgate.types import TokenSource

_SHORT_SOURCES = {
    TokenSource.ACCEPTED: "accepted from the draft model",
    TokenSource.ACCEPTED_LAYER_SKIP: "accepted from the target's own layers",
    TokenSource.ACCEPTED_SUFFIX: "accepted copies of the text so far",
    TokenSource.RECOVERED: "recovered",
    TokenSource.BONUS: "bonus",
    TokenSource.SOLO: "solo",
}


class Conversation:
    """Turns and their answers. ``system`` is the system prompt; empty is none."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.results: list[Result] = []
        """The results of all answers, also of turns that were taken back."""
        self._turns: list[tuple[str, str]] = []

    def asked_with(self, text: str) -> tuple[ChatMessage, ...]:
        """Return the messages that are sent for an answer to ``text``."""
        said = [ChatMessage("system", self.system)] if self.system else []
        for asked, answer in self._turns:
            said += [ChatMessage("user", asked), ChatMessage("assistant", answer)]
        return (*said, ChatMessage("user", text))

    def add(self, text: str, result: Result) -> None:
        """Keep a turn, as far as its answer got."""
        self._turns.append((text, result.text))
        self.results.append(result)

    def take_back(self) -> str | None:
        """Forget the last turn, and return what was asked in it; None where there is none."""
        return self._turns.pop()[0] if self._turns else None

    def reset(self) -> None:
        """Forget all turns and their results; the system prompt stays."""
        self._turns.clear()
        self.results.clear()


def stats_table(results: Sequence[Result], gate: str) -> Table:
    """Return the figures of the last answer and of all; ``results`` has at least one."""
    parts = (results[-1:], results)
    rows: list[tuple[str, ...]] = [
        ("answers", *(str(len(part)) for part in parts)),
        ("tokens", *(str(sum(len(one.token_ids) for one in part)) for part in parts)),
        ("tokens/s", *(number(_rate(part), ".1f") for part in parts)),
        ("acceptance", *(_share(_sum(part, "accepted"), _sum(part, "drafted")) for part in parts)),
        *((f"  {name}", *counts) for name, counts in _by_source(parts)),
        ("rounds with a draft", *(str(_sum(part, "rounds")) for part in parts)),
        ("tokens per target forward", *(number(_per_forward(part), ".2f") for part in parts)),
        ("gate", gate, gate),
    ]
    titles = ("", "last answer", "whole chat")
    return table_of(rows, [(title, itemgetter(index)) for index, title in enumerate(titles)])


def _by_source(parts: Sequence[Sequence[Result]]) -> list[tuple[str, list[str]]]:
    counts = {source: [sum(one.sources.count(source) for one in part) for part in parts] for source in _SHORT_SOURCES}
    return [(_SHORT_SOURCES[source], list(map(str, count))) for source, count in counts.items() if any(count)]


def _sum(results: Sequence[Result], name: str) -> int:
    # An answer that was stopped has tokens, but no statistics.
    return sum(getattr(one.stats, name) for one in results)


def _share(part: int, whole: int) -> str:
    return number(part / whole if whole else None, ".0%")


def _rate(results: Sequence[Result]) -> float | None:
    seconds = sum(one.last_s - one.first_s for one in results)
    return sum(one.decode_tokens for one in results) / seconds if seconds > 0 else None


def _per_forward(results: Sequence[Result]) -> float | None:
    forwards = _sum(results, "target_forwards")
    return _sum(results, "completion_tokens") / forwards if forwards else None
