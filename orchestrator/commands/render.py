"""Tokens in colour by source, the legend, and the closing line of statistics."""

from collections import deque
from collections.abc import Callable, Sequence

from rich.text import Text

from orchestrator.commands.results import Result
from orchestrator.request import Delta
from specgate.types import TokenSource

STYLES = {
    TokenSource.ACCEPTED: "green",
    TokenSource.RECOVERED: "red",
    TokenSource.BONUS: "cyan",
    TokenSource.SOLO: "dim",
}
_MEANING = {
    TokenSource.ACCEPTED: "accepted draft",
    TokenSource.RECOVERED: "recovered: the target's own after a rejection",
    TokenSource.BONUS: "bonus: the target's own after full acceptance",
    TokenSource.SOLO: "solo: the target alone",
}

StepText = Callable[[int], str]
"""Returns the text that became readable with this token; empty in the middle of a character."""


class Painter:
    """Colours the text of deltas, each token's by its own source.

    A delta's text is the truth: it waits for whole characters and ends before a stop string. Which of its
    characters belong to which token comes from decoding the tokens one by one.
    """

    def __init__(self, step: StepText) -> None:
        self._step = step
        self._waiting: deque[tuple[str, TokenSource]] = deque()
        self._last = TokenSource.SOLO

    def paint(self, delta: Delta) -> Text:
        """Return the delta's text, coloured."""
        for token_id, source in zip(delta.token_ids, delta.sources, strict=True):
            self._waiting.append((self._step(token_id), source))
        painted, rest = Text(), delta.text
        while rest:
            piece, source = self._take(len(rest))
            painted.append(rest[: len(piece)], STYLES[source])
            rest = rest[len(piece) :]
        return painted

    def _take(self, most: int) -> tuple[str, TokenSource]:
        """Take up to ``most`` characters of the oldest token that has any."""
        while self._waiting:
            piece, self._last = self._waiting.popleft()
            if len(piece) > most:
                self._waiting.appendleft((piece[most:], self._last))
            if piece:
                return piece[:most], self._last
        # What no token brought is the unfinished character that the end of the request lets through.
        return "\N{REPLACEMENT CHARACTER}" * most, self._last


def legend(sources: Sequence[TokenSource] = tuple(TokenSource)) -> Text:
    """Return one line a source, in its own colour."""
    return Text("\n").join(Text("  ").append(f"■ {_MEANING[source]}", STYLES[source]) for source in sources)


def statistics_line(result: Result) -> Text:
    """Return the closing line: how much, how fast, and how it came about."""
    stats = result.stats
    parts = [
        f"{stats.completion_tokens} tokens",
        f"{result.tokens_per_s:.1f} tokens/s" if result.tokens_per_s else "",
        f"acceptance {stats.acceptance_rate:.0%}" if stats.drafted else "nothing drafted",
        f"{stats.tokens_per_forward:.2f} tokens per target forward",
        f"solo {stats.solo_share:.0%}",
        f"near ties {stats.near_ties}",
        f"failures survived {stats.drafter_failures + stats.verifier_failovers}",
        f"seed {stats.seed}",
    ]
    return Text(" · ".join(part for part in parts if part), "bold")
