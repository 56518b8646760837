"""What every test gets: a clean environment, and one torch thread; and Ray, where a test asks for it.

The tests run in two processes. A file's tests stay together, for what they share; all that need Ray share one cluster.
"""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.ray_cluster import Cluster

if find_spec("hypothesis"):
    import hypothesis

    # How long an example takes is the machine's affair.
    hypothesis.settings.register_profile("specgate", deadline=None)
    hypothesis.settings.load_profile("specgate")
if find_spec("torch"):
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        # Triton asks when it is imported first, and that may be by transformers.
        os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and every process that a test starts would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.left_out", "tests.support.shared_fixtures"]

RAY_FOLDERS = frozenset({"cluster", "chaos", "deploy"})
LONG_FOLDERS = (*sorted(RAY_FOLDERS), "integration", "fuzz", "verifier_svc", "drafter_svc")
"""Begun first, so that no long file is left at the end to one of the two processes."""
SETTINGS_OF_PLUGINS = {
    "pytest_asyncio": ("asyncio_mode", "asyncio_default_fixture_loop_scope", "asyncio_default_test_loop_scope"),
    "pytest_timeout": ("timeout",),
}
PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy", "grpc_proxy", "no_grpc_proxy"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the chaos suite's options, and let pyproject's settings of plugins stand where a plugin is missing: a machine
    with a GPU may have few.
    """
    parser.addoption("--fuzz-s", default="15", help="seconds that all fuzz tests share")
    parser.addoption("--fuzz-each-s", help="seconds of each fuzz test, in place of a share of --fuzz-s")
    parser.addoption("--results", help="folder for chaos.json and fuzz.json")
    for plugin, names in SETTINGS_OF_PLUGINS.items():
        if not find_spec(plugin):
            for name in names:
                parser.addini(name, f"of {plugin}, which is not installed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under ``-m gpu`` leave files and folders without such tests alone: what they import may be missing there."""
    if config.option.markexpr != "gpu":
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    texts = (file.read_text("utf-8") for file in files if file.suffix == ".py")
    return None if any("mark.gpu" in text for text in texts) else True


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
def clean_environ(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove what a developer's shell would otherwise slip into a test: our settings, Ray's, and proxies.

    What commands keep between runs goes to a folder of the test's own.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    for name in list(os.environ):
        if name.startswith(("SPECGATE_", "RAY_")) or name.lower() in PROXIES:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator["Cluster"]:
    """One Ray cluster for all tests that need one."""
    pytest.importorskip("ray")
    from tests.support.ray_cluster import running_cluster

    with running_cluster() as cluster:
        yield cluster
