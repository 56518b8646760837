"""docs/models.md: written from a run of every case in tests/support/architectures.py, and read back by a test.

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
from tests.support.architectures import CASES, WINDOW, Case

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models.md"
_HEAD = f"""# Models

Written by `scripts/models_table` from a run with transformers {{transformers}} and torch {{torch}}; not edited by hand.

Any causal language model that transformers loads, that takes its attention from `AttentionInterface` and that ships
safetensors is served, if it passes the self-check that ends every load; what does not pass is refused with a reason.
Here are the architectures that the tests bring to the serving path, as tiny random models in float32 on the CPU:
several sequences in one batch, prefill in chunks, rounds of five tokens, rollbacks, single tokens, windows of {WINDOW}
tokens in sequences of up to 93. Query and key weights are scaled up, biases and norms are random; without a named
window, soft-cap, multiplier or optional bias the same weights answer something else.

*Exact* means that every row of logits was compared with the model's own eager forward without a cache: the number is
the largest relative error of an answer (Frobenius norm; the limit is 1e-4), and the greedy token was the same
everywhere. Models that are not in the table may well be served: the self-check decides.

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
    """Yield name, class and verdict of every row of the document, without the numbers."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and "`" in line:
            name, architecture, result, _ = line.removeprefix("| ").removesuffix(" |").split(" | ")
            yield name, architecture.strip("`"), "exact" if result.startswith("exact to ") else result


def main() -> None:
    lines = []
    for case in CASES:
        print(case.name, file=sys.stderr)
        lines.append(f"| {case.name} | `{case.architecture}` | {_result(case)} | {case.covers} |\n")
    head = _HEAD.format(transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    DOCUMENT.write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
