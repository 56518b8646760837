"""A progress bar on standard error while a measurement runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def counting_bar(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of ``total`` are done; call what this yields once for each."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
