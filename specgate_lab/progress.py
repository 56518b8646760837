"""Progress of work that takes minutes: a bar for each stage on standard error, or lines where that is no terminal."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINES = 10
"""Of a stage, where bars cannot move."""


class StageBars:
    """Shows each stage of long work: how much of it is done, how much there is, and a word on it."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        word = TextColumn("{task.fields[word]}", markup=False)
        self._console = console
        self._progress = Progress(*columns, word, console=console, disable=not console.is_terminal, transient=True)
        self._stages: dict[str, TaskID] = {}
        self._printed: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def counter(self, stage: str, total: int) -> Callable[[], None]:
        """Return what is to be called once for each part of a stage."""
        done = itertools.count(1)
        return lambda: self.show(stage, next(done), total)

    def show(self, stage: str, done: int, total: int, word: str = "") -> None:
        """Show where a stage is."""
        if stage not in self._stages:
            self._stages[stage] = self._progress.add_task(stage, total=total, completed=done, word=word)
        self._progress.update(self._stages[stage], completed=done, word=word)
        is_due = done % max(1, -(-total // LINES)) == 0 and self._printed.get(stage) != done
        if is_due and not self._console.is_terminal:
            self._printed[stage] = done
            line = f"{stage} {done}/{total} {word}".rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def counting_bar(console: Console, stage: str, total: int) -> Iterator[Callable[[], None]]:
    """Show one stage; call what this yields once for each of its parts."""
    with StageBars(console) as bars:
        yield bars.counter(stage, total)


def print_files(log: Console, files: Sequence[Path]) -> None:
    """Print which files were written, and what a picture needs where there is none."""
    line = f"written: {', '.join(map(str, files))}"
    if not any(file.suffix == ".png" for file in files):
        line += "; for a picture: pip install 'specgate[bench]'"
    log.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
