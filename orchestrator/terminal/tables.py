"""Tables of numbers, one row a measurement."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

R = TypeVar("R")


def table_of(
    rows: Sequence[R],
    columns: Sequence[tuple[str, Callable[[R], str]]],
    num_names: int = 1,
    style_of: Callable[[R], str | None] = lambda _: None,
) -> Table:
    """Return the table; the first ``num_names`` columns name the row and stand on the left."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, (title, _) in enumerate(columns):
        table.add_column(title, justify="left" if index < num_names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns), style=style_of(row))
    return table


def number(value: float | None, spec: str) -> str:
    """Return the number as ``spec`` says, a dash where there is none."""
    return "–" if value is None else format(value, spec)
