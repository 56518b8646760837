"""The table of architectures in the docs: written from a run of every case of ``architectures``, read back by a test.

Run by scripts/models_table.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

from specgate.errors import UnsupportedArchitecture
from tests.support.architecture_runs import measure, write_case
from tests.support.architectures import CASES, Case

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "internals" / "adding-an-architecture.md"
_BEGIN = "<!-- table of architectures: written by scripts/models_table -->\n"
_END = "<!-- end of the table of architectures -->\n"
_HEAD = """With transformers {transformers} and torch {torch}:

| model | class in transformers | on the serving path | what was covered |
|---|---|---|---|
"""


def _result(case: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            difference = measure(write_case(case, Path(folder)))
        except UnsupportedArchitecture as refusal:
            return case.verdict if case.refused and case.refused in str(refusal) else f"refused: {refusal}"
    return f"exact to {difference.worst:.0e}" + (", other tokens" if difference.other_choices else "")


def documented_verdicts() -> Iterator[tuple[str, str, str]]:
    """Yield name, class and verdict of every row of the table, without the numbers."""
    _, table, _ = _parts()
    for line in table.splitlines():
        if line.startswith("| ") and "`" in line:
            name, architecture, result, _ = line.removeprefix("| ").removesuffix(" |").split(" | ")
            yield name, architecture.strip("`"), "exact" if result.startswith("exact to ") else result


def _parts() -> tuple[str, str, str]:
    """Return the document up to its table, the table, and what follows."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
    table, _, after = rest.partition(_END)
    return before, table, after


def main() -> None:
    lines = []
    for case in CASES:
        print(case.name, file=sys.stderr)
        lines.append(f"| {case.name} | `{case.architecture}` | {_result(case)} | {case.covers} |\n")
    head = _HEAD.format(transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    before, _, after = _parts()
    DOCUMENT.write_text("".join([before, _BEGIN, head, *lines, _END, after]), encoding="utf-8")


if __name__ == "__main__":
    main()
