"""The comparison as a table."""

from rich.console import Console
from rich.table import Table

from specgate_lab.tune.pair.advice import Advice
from specgate_lab.tune.versus_target import Gain


def print_choices(console: Console, advice: Advice) -> None:
    """Print every way to draft, the fastest first; finalists with what they brought in the final round."""
    found = {one.choice: one.gain for one in advice.tried} | dict(advice.finals)
    table = Table(box=None, header_style="bold")
    for name in ("way to draft", "tokens/s", "× target", "95 %", "accepted"):
        table.add_column(name, justify="left" if name == "way to draft" else "right")
    for choice, gain in sorted(found.items(), key=lambda item: -item[1].ratio):
        style = "bold green" if choice == advice.choice else "" if choice in advice.finals else "dim"
        table.add_row(str(choice), *_cells(gain), style=style)
    console.print(table)
    console.print("dim: tried for a short time alone", style="dim")


def _cells(gain: Gain) -> tuple[str, ...]:
    interval = f"{gain.interval.low:.2f}..{gain.interval.high:.2f}" if gain.interval else "–"
    accepted = "–" if gain.acceptance is None else f"{gain.acceptance:.0%}"
    return f"{gain.tokens_per_s:.1f}", f"{gain.ratio:.2f}", interval, accepted
