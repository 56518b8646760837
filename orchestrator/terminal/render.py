"""Tokens in colour by source, the legend, and the closing line of statistics."""

import asyncio
import io
import select
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from orchestrator.decode.request import Delta
from orchestrator.decode.text import IncrementalText
from orchestrator.terminal.results import Result
from specgate.types import TokenSource

STYLES = {
    TokenSource.ACCEPTED: Style(color="green"),
    TokenSource.RECOVERED: Style(color="yellow"),
    TokenSource.BONUS: Style(color="cyan"),
    TokenSource.SOLO: Style.null(),
    TokenSource.ACCEPTED_LAYER_SKIP: Style(color="bright_green"),
    TokenSource.ACCEPTED_SUFFIX: Style(color="magenta"),
}
_MEANING = {
    TokenSource.ACCEPTED: "accepted draft",
    TokenSource.RECOVERED: "recovered: the target's own after a rejection",
    TokenSource.BONUS: "bonus: the target's own after full acceptance",
    TokenSource.SOLO: "solo: the target alone",
    TokenSource.ACCEPTED_LAYER_SKIP: "accepted draft of the target's own layers",
    TokenSource.ACCEPTED_SUFFIX: "accepted copy from the text so far",
}

_PIPED_WIDTH = 120
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class Painter:
    """Colours the text of deltas, each token's by its own source.

    A delta's text is the truth: it waits for whole characters and ends before a stop string. Which of its
    characters belong to which token comes from decoding the tokens one by one. Without a decoder, as for a target
    that has no tokenizer, the token ids are what is shown.
    """

    def __init__(self, decoder: IncrementalText | None) -> None:
        self._decoder = decoder
        self._waiting: deque[tuple[str, TokenSource]] = deque()
        self._last = TokenSource.SOLO

    def paint(self, delta: Delta) -> list[Segment]:
        """Return the delta's text, coloured."""
        tokens = zip(delta.token_ids, delta.sources, strict=True)
        if self._decoder is None:
            return [Segment(f"{token_id} ", STYLES[source]) for token_id, source in tokens]
        self._waiting.extend((self._decoder.step((token_id,)), source) for token_id, source in tokens)
        painted, rest = [], delta.text
        while rest:
            piece, source = self._take(len(rest))
            painted.append(Segment(rest[: len(piece)], STYLES[source]))
            rest = rest[len(piece) :]
        return painted

    def finish(self) -> list[Segment]:
        """Return what is left to be shown of an answer: nothing."""
        return []

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


class DeltaPainter:
    """Colours the text of deltas where there is no tokenizer: each in the colour of its last token.

    A verdict commits accepted draft tokens and then one of the target's own, so the colour is that of its end.

    Args:
        shows_ids: where nothing of the answer was text, show its token ids, each in its own colour.
    """

    def __init__(self, *, shows_ids: bool = False) -> None:
        self._ids: list[Segment] | None = [] if shows_ids else None
        self._last = TokenSource.SOLO

    def paint(self, delta: Delta) -> list[Segment]:
        """Return the delta's text, coloured."""
        self._last = delta.sources[-1] if delta.sources else self._last
        if delta.text:
            self._ids = None
            return [Segment(delta.text, STYLES[self._last])]
        if self._ids is not None:
            self._ids += Painter(None).paint(delta)
        return []

    def finish(self) -> list[Segment]:
        """Return what is left to be shown of an answer."""
        return self._ids or []


def output_console() -> Console:
    """Return the console for results: what is piped has no width that a table should keep to."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def warner(console: Console) -> Callable[[str], None]:
    """Return what prints a line, whole, as a warning."""
    return lambda line: console.print(line, style="yellow", markup=False, soft_wrap=True)


def write(console: Console, segments: Sequence[Segment]) -> None:
    """Write text as it is: rich's own Text would expand tabs and wrap lines.

    On a terminal control characters are shown as pictures; a model's output must not steer it.
    """
    if console.is_terminal:
        segments = [Segment(segment.text.translate(_CONTROL_PICTURES), segment.style) for segment in segments]
    console.print(Segments(segments), end="", soft_wrap=True)


async def until_writable(console: Console) -> None:
    """Return when what reads the output takes more. A pager that is not scrolled must not hold up the event loop, in
    which requests go on and sessions are kept alive.
    """
    try:
        fd = console.file.fileno()
    except io.UnsupportedOperation:
        return
    if select.select([], [fd], [], 0)[1]:
        return
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(fd, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(fd)


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
        f"failures survived {stats.failures_survived}",
        f"seed {stats.seed}",
    ]
    return Text(" · ".join(part for part in parts if part), "bold")
