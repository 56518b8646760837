"""Progress bars on standard error while services load."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from orchestrator.local.local_services import OnLoading


@contextmanager
def loading_bars(console: Console, roles: Iterable[str]) -> Iterator[OnLoading]:
    """Show a bar with the stage of each service. A further service gets its bar with its first stage.

    Without a terminal nothing is shown.
    """
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.fields[stage]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bars = {role: progress.add_task(role, stage="starting", total=None) for role in roles}

        def show(role: str, stage: str, done: int, total: int) -> None:
            # A stage of one step has no share that a bar could show.
            share = {"total": total, "completed": done} if total > 1 else {"total": None}
            if role not in bars:
                bars[role] = progress.add_task(role, stage=stage, total=None)
            progress.update(bars[role], stage=stage, **share)

        yield show
