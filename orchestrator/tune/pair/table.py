"""The comparison as a table."""

from rich.console import Console
from rich.table import Table

from orchestrator.tune.pair.advice import Advice
from orchestrator.tune.versus_target import Brought


def print_choices(console: Console, advice: Advice) -> None:
    """Print every way to draft, the fastest first; finalists with what they brought in the final round."""
    found = {one.choice: one.brought for one in advice.tried} | dict(advice.finals)
    table = Table(box=None, header_style="bold")
    for name in ("way to draft", "tokens/s", "× target", "95 %", "accepted"):
        table.add_column(name, justify="left" if name == "way to draft" else "right")
    for choice, brought in sorted(found.items(), key=lambda item: -item[1].ratio):
        style = "bold green" if choice == advice.choice else "" if choice in advice.finals else "dim"
        table.add_row(str(choice), *_cells(brought), style=style)
    console.print(table)
    console.print("dim: tried for a short time alone", style="dim")


def _cells(brought: Brought) -> tuple[str, ...]:
    interval = f"{brought.interval.low:.2f}..{brought.interval.high:.2f}" if brought.interval else "–"
    accepted = "–" if brought.acceptance is None else f"{brought.acceptance:.0%}"
    return f"{brought.tokens_per_s:.1f}", f"{brought.ratio:.2f}", interval, accepted
