"""One row a fault: what the user sees of it, and what is left behind."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgate_lab.report import ResultsFile

MAX_TOLD = 160
Rows = Sequence[dict[str, Any]]


@dataclass(slots=True)
class ChaosRow:
    """One fault.

    ``gap_s`` is the longest wait between two pieces of a stream, ``text_equal`` says whether its text was that of an
    undisturbed run with the same seed, ``left`` what sessions and pages were held afterwards, and ``grown_mb`` how much
    more memory the processes hold than before. None is "not asked here".
    """

    name: str
    seen: str = ""
    gap_s: float | None = None
    text_equal: bool | None = None
    left: str | None = None
    grown_mb: float | None = None
    broke: str = ""

    def compare(self, token_ids: Sequence[int], whole: Sequence[int]) -> None:
        """Say whether tokens are the beginning of the whole text; of no tokens nothing is said.

        Raises:
            AssertionError: they are not.
        """
        if token_ids:
            self.text_equal = tuple(token_ids) == tuple(whole[: len(token_ids)])
            assert self.text_equal

    def to_object(self) -> dict[str, Any]:
        """Return the row as the table and the file hold it."""
        equal = None if self.text_equal is None else "yes" if self.text_equal else "NO"
        return {
            "name": self.name,
            "held": "NO" if self.broke else "yes",
            "seen": self.broke or self.seen,
            "gap_s": self.gap_s,
            "text_equal": equal,
            "still_held": self.left,
            "grown_mb": self.grown_mb,
        }


class ChaosTable:
    """All rows of one run, in the order in which they were tried."""

    def __init__(self) -> None:
        self._rows: list[ChaosRow] = []

    @contextmanager
    def row(self, fault: str) -> Iterator[ChaosRow]:
        """Yield the row of one fault. What breaks a promise in the block is told in it, and raised."""
        row = ChaosRow(fault)
        self._rows.append(row)
        try:
            yield row
        except BaseException as error:
            told = str(error).strip().splitlines() or [""]
            row.broke = f"{type(error).__name__}: {told[0]}"[:MAX_TOLD]
            raise

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [row.to_object() for row in self._rows]

    @staticmethod
    def lines(rows: Rows) -> Iterator[str]:
        """Yield a table of rows, as text."""
        names = list(rows[0])
        cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
        widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
        for line in cells:
            yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()

    @staticmethod
    def write(path: Path, origin: Mapping[str, Any], rows: Rows, first_seed: int) -> None:
        """Write rows and where they come from, whole or not at all."""
        ResultsFile(path, provenance=origin).write({"first_seed": first_seed, "rows": list(rows)})


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)
