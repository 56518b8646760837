"""The rows of vLLM with our drafter, written at the end: vllm.json among the results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from specgate_lab.provenance import provenance
from specgate_lab.report import ResultsFile
from specgate_vllm import hook

ROWS = pytest.StashKey[dict[str, dict[str, Any]]]()
ORIGIN = pytest.StashKey[Mapping[str, Any]]()
AddRow = Callable[..., None]


@pytest.fixture(scope="session")
def row(pytestconfig: pytest.Config) -> AddRow:
    """Add values to the row of a name."""
    pytestconfig.stash.setdefault(ORIGIN, provenance(["make", "test-vllm"]))
    rows = pytestconfig.stash.setdefault(ROWS, {})

    def add(name: str, **values: Any) -> None:
        rows.setdefault(name, {"name": name}).update(values)

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = list(config.stash.get(ROWS, {}).values())
    for one in rows:
        terminalreporter.write_line("; ".join(f"{key} {value}" for key, value in one.items()))
    if rows and (results := config.getoption("--results")):
        file = ResultsFile(Path(results) / "vllm.json", provenance=config.stash[ORIGIN])
        file.write({"vllm": hook.WRITTEN_FOR[-1], "rows": rows})
