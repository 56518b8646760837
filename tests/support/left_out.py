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
LEFT_OUT = pytest.StashKey[set[tuple[str, str, str]]]()
"""What other commands run: "tests" or "files", of which marker, and which one."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing."""
    config.stash[LEFT_OUT] = set()


class LeftAlone(pytest.Module):
    """A file that cannot be imported here."""

    def collect(self) -> list[pytest.Item]:
        """Return nothing, and import nothing."""
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftAlone | None:
    """Leave the files of a marker alone whose package is missing."""
    marks = "".join(re.findall("^pytestmark = .*", module_path.read_text("utf-8"), re.MULTILINE))
    missing = [name for name in FETCHED if f"mark.{name}" in marks and not find_spec(name)]
    parent.config.stash[LEFT_OUT].update(("files", name, str(module_path)) for name in missing)
    return LeftAlone.from_parent(parent, path=module_path) if missing else None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count each test once, under the last marker of the expression that leaves it out."""
    for item in items:
        names = re.findall(r"not (\w+)", item.config.option.markexpr)
        found = [name for name in names if item.get_closest_marker(name)]
        item.config.stash[LEFT_OUT].update(("tests", name, item.nodeid) for name in found[-1:])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI fail over a skipped test. A process of pytest-xdist reports what it has left out."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]
    elif os.environ.get("CI") and skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of pytest-xdist has left out; they all leave out the same."""
    node.config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", ()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """Write the list behind all other summaries."""
    yield
    missing, elsewhere = skipped(config), Counter(one[:2] for one in config.stash[LEFT_OUT])
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
