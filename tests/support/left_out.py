"""A plugin of pytest that tells at the end of a run which tests did not run, and why.

A skipped test lacks something here. With CI in the environment that is an error, because there everything is at hand.
Other tests belong to commands of their own: their markers name them.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FETCHED = ("schemathesis", "triton")
"""Packages that are fetched by the command of the marker of the same name. Files with it cannot be imported without."""
LEFT_OUT = pytest.StashKey[Counter[tuple[str, str]]]()
"""How many "tests" or "files" of which marker."""


def pytest_configure(config: pytest.Config) -> None:
    """Count from zero."""
    config.stash[LEFT_OUT] = Counter()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the files of a marker alone whose package is missing."""
    text = collection_path.read_text("utf-8") if collection_path.match("test_*.py") else ""
    missing = [name for name in FETCHED if f"mark.{name}" in text and not find_spec(name)]
    config.stash[LEFT_OUT].update(("files", name) for name in missing)
    return True if missing else None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count each test once, under the last marker of the expression that leaves it out."""
    for item in items:
        names = re.findall(r"not (\w+)", item.config.option.markexpr)
        found = [name for name in names if item.get_closest_marker(name)]
        item.config.stash[LEFT_OUT].update(("tests", name) for name in found[-1:])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI fail over a skipped test. A process of pytest-xdist reports what it has left out."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])
    elif os.environ.get("CI") and skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of pytest-xdist has left out; they all leave out the same."""
    node.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Write the list behind all other summaries."""
    yield
    missing, elsewhere = skipped(config), config.stash[LEFT_OUT]
    if missing or elsewhere:
        terminalreporter.section("did not run")
    for reason, nodes in sorted(missing.items()):
        files = sorted({node.partition("::")[0] for node in nodes})
        terminalreporter.line(f"{len(nodes)} skipped: {reason} ({', '.join(files)})")
    for (what, name), number in sorted(elsewhere.items()):
        told = next(line for line in config.getini("markers") if line.startswith(f"{name}:"))
        terminalreporter.line(f"{number} {what} of {told}")
    if missing and os.environ.get("CI"):
        terminalreporter.line("a skipped test is an error where CI is set", red=True)


def skipped(config: pytest.Config) -> dict[str, list[str]]:
    """Return the tests that were skipped, or files that were, by the reason."""
    found = defaultdict(list)
    for report in config.pluginmanager.getplugin("terminalreporter").stats.get("skipped", ()):
        found[report.longrepr[2].removeprefix("Skipped: ")].append(report.nodeid)
    return found
