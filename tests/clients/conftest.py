"""What these tests share: served systems, a proxy that cuts streams, and the table of clients, written at the end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specgate_lab.provenance import provenance
from specgate_lab.report import ResultsFile
from tests.clients.served import Served, Through, serving
from tests.support.clients import ClientTable
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.loop_thread import LoopThread

TABLE = pytest.StashKey[ClientTable]()
ORIGIN = pytest.StashKey[Mapping[str, Any]]()


@pytest.fixture(scope="session")
def clients(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> ClientTable:
    """What runs clients, and keeps their rows."""
    pytestconfig.stash.setdefault(ORIGIN, provenance(["make", "test-clients"]))
    return pytestconfig.stash.setdefault(TABLE, ClientTable(tmp_path_factory.mktemp("homes")))


@pytest.fixture(scope="session")
def pair() -> Iterator[Served]:
    """The bundled pair, served."""
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def through() -> Iterator[Through]:
    """Stands proxies before endpoints, on a loop of their own."""
    with LoopThread() as loop:

        @contextmanager
        def opened(endpoint: str, cut: Cut) -> Iterator[str]:
            with loop.entered(CutProxy(endpoint, cut)) as proxy:
                yield proxy.endpoint

        yield opened


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    table = config.stash.get(TABLE, None)
    rows = table.rows() if table is not None else []
    if not rows:
        return
    terminalreporter.section("clients")
    for row in rows:
        terminalreporter.write_line(f"{row['name']} {row['version']}: {row['held']}; {row['ran']}; {row['seen']}")
    if results := config.getoption("--results"):
        ResultsFile(Path(results) / "clients.json", provenance=config.stash[ORIGIN]).write({"rows": rows})
