"""What every test gets: a clean environment, and one torch thread; and Ray, where a test asks for it.

The tests run in two processes. A file's tests stay together, for what they share; all that need Ray share one cluster.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.ray_cluster import Cluster

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)

RAY_FOLDERS = frozenset({"fleet", "chaos", "deploy"})
LONG_FOLDERS = (*sorted(RAY_FOLDERS), "integration", "verifier_svc", "drafter_svc")
"""Begun first, so that no long file is left at the end to one of the two processes."""
PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy", "grpc_proxy", "no_grpc_proxy"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take longest first; others stay as they are."""
    places = {folder: place for place, folder in enumerate(LONG_FOLDERS)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Say which tests run one after the other, in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # untyped
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.partition("::")[0])
            return "ray" if path.parent.name in RAY_FOLDERS else str(path)

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what a developer's shell would otherwise slip into a test: our settings, Ray's, and proxies."""
    for name in list(os.environ):
        if name.startswith(("SPECGATE_", "RAY_")) or name.lower() in PROXIES:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator["Cluster"]:
    """One Ray cluster for all tests that need one."""
    pytest.importorskip("ray")
    from tests.ray_cluster import running_cluster

    with running_cluster() as cluster:
        yield cluster
