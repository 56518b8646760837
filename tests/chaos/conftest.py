"""What the chaos suite shares: how long to fuzz, and what came of it all, printed and written at its end."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos_table import ChaosTable
from tests.support.fuzzing import Budget

NUM_SURFACES = 6
"""HTTP bodies, four methods of gRPC, and sessions: they share the seconds."""
TABLE = pytest.StashKey[ChaosTable]()
BUDGET = pytest.StashKey[Budget]()


def pytest_configure(config: pytest.Config) -> None:
    seconds = float(config.getoption("--fuzz-s"))
    # The seconds that CI gives it are always spent on the same cases.
    first_seed = random.randrange(1 << 32) if config.getoption("--results") else 0
    config.stash[BUDGET] = Budget(seconds / NUM_SURFACES, first_seed)
    config.stash[TABLE] = ChaosTable()


@pytest.fixture(scope="session")
def fuzz_budget(pytestconfig: pytest.Config) -> Budget:
    return pytestconfig.stash[BUDGET]


@pytest.fixture(scope="session")
def chaos(pytestconfig: pytest.Config) -> ChaosTable:
    """Where each fault's row goes."""
    return pytestconfig.stash[TABLE]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    results = config.getoption("--results")
    table, budget = config.stash[TABLE], config.stash[BUDGET]
    for name, rows in {"chaos": table.rows(), "fuzz": budget.rows()}.items():
        if not rows:
            continue
        terminalreporter.section(name)
        for line in table.lines(rows):
            terminalreporter.write_line(line)
        if results:
            table.write(Path(results) / f"{name}.json", rows, budget.first_seed)
