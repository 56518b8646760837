"""What the chaos suite shares: how long to fuzz, and what came of it all, printed and written at its end."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specgate_lab.provenance import provenance
from tests.support.chaos_table import ChaosTable
from tests.support.fuzzing import Budget

if TYPE_CHECKING:
    from tests.support.chaos_fleet import Fleet
    from tests.support.chaos_system import System

NUM_SURFACES = 8
"""HTTP bodies, what the document allows, both doors, four methods of gRPC, and sessions: they share the seconds."""
TABLE = pytest.StashKey[ChaosTable]()
BUDGET = pytest.StashKey[Budget]()
ORIGIN = pytest.StashKey[Mapping[str, Any]]()


def pytest_configure(config: pytest.Config) -> None:
    each_s = config.getoption("--fuzz-each-s")
    seconds = float(config.getoption("--fuzz-s")) / NUM_SURFACES if each_s is None else float(each_s)
    # The seconds that CI gives it are always spent on the same cases.
    first_seed = random.randrange(1 << 32) if config.getoption("--results") else 0
    config.stash[BUDGET] = Budget(seconds, first_seed)
    config.stash[TABLE] = ChaosTable()
    # Before anything is measured: what is written at the end is of this tree.
    config.stash[ORIGIN] = provenance(["make", "chaos"]) if config.getoption("--results") else {}


@pytest.fixture(scope="session")
def fuzz_budget(pytestconfig: pytest.Config) -> Budget:
    return pytestconfig.stash[BUDGET]


@pytest.fixture(scope="session")
def chaos(pytestconfig: pytest.Config) -> ChaosTable:
    """Where each fault's row goes."""
    return pytestconfig.stash[TABLE]


@pytest.fixture(scope="module")
def fleet() -> Iterator["Fleet"]:
    """One drafter and two verifiers a file, and the text of the target alone."""
    from tests.support.chaos_fleet import REQUEST, running_fleet
    from tests.support.orchestrating import connected, run

    with running_fleet() as fleet:

        async def undisturbed() -> list[int]:
            async with connected([], [fleet.verifiers[0]]) as orchestrator:
                return list((await run(orchestrator, REQUEST)).token_ids)

        fleet.text = asyncio.run(undisturbed())
        yield fleet


@pytest.fixture(scope="module")
def system() -> Iterator["System"]:
    """One served system a file, and the text that its stream has where nothing is disturbed."""
    from tests.support.chaos_streams import NUM_TOKENS, watch
    from tests.support.chaos_system import serving_system

    with serving_system() as system:

        async def undisturbed() -> list[int]:
            return (await watch(system.stream())).token_ids

        system.wait_back(1)
        system.text = asyncio.run(undisturbed())
        assert len(system.text) == NUM_TOKENS
        yield system


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
            table.write(Path(results) / f"{name}.json", config.stash[ORIGIN], rows, budget.first_seed)
