"""Copies of a checkout, and pytest in them."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 300.0
"""Of the tests of one break."""
LIMITS: Mapping[str, str] = {"PYTEST_TIMEOUT": "60", "SPECGATE_TEST_PATIENCE_S": "25"}
"""Of one test, and of a wait in it, in place of the project's. With a mistake some hang."""
PYTEST = ("-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist")
TESTS_FAILED, NOT_RUN = 1, (2, 3, 4, 5)
"""pytest's exit codes; the latter say that no test was run, or not to its end."""
SELECTED = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
BUILT = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", "specgate/*.so")
"""What git ignores, and the product imports."""
INSTALLED = (".venv", ".venv-clients-*", ".schemathesis", "tests/clients/node/node_modules")
"""What git ignores, and tests run."""


@dataclass(frozen=True, slots=True)
class Run:
    """pytest's exit code, the ids of the tests that failed, and the last line of what it said."""

    code: int
    failed: tuple[str, ...]
    last_line: str


class Stopped(Exception):
    """Nothing is started any more."""


class Runner:
    """Runs tests in copies, and ends all that run when it is told to. For several threads.

    Args:
        options: of pytest, for all runs.
        limits: of tests and waits, see ``LIMITS``.
    """

    def __init__(self, *options: str, limits: Mapping[str, str] = LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False

    def run(self, folder: Path, tests: Collection[str], *options: str, limit_s: float | None = LIMIT_S) -> Run:
        """Run tests in ``folder``, whose code is what they and their processes import.

        Raises:
            subprocess.TimeoutExpired: they took longer than ``limit_s``.
        """
        environ = {**os.environ, "PYTHONPATH": f"{folder}:{folder / '.schemathesis'}", **self._limits}
        with self._lock:
            if self._is_stopped:
                raise Stopped
            process = subprocess.Popen(
                [sys.executable, *PYTEST, *self._options, *options, *tests],
                cwd=folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
        try:
            lines = process.communicate(timeout=limit_s)[0].splitlines() or [""]
        finally:
            self._running.discard(process)
            _end(process)
        failed = (line.partition(" ")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR")))
        return Run(process.returncode, tuple(failed), lines[-1])

    def stop(self) -> None:
        """End what runs."""
        with self._lock:
            self._is_stopped = True
            for process in tuple(self._running):
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and what it has left in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def copy(root: Path, target: Path) -> Path:
    """Copy what git knows of a checkout, as it is now, and what was built in it; return the copy."""
    for selection in (SELECTED, BUILT):
        names = subprocess.run(["git", "-C", root, *selection], check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target / name)
    for path in (path for pattern in INSTALLED for path in root.glob(pattern)):
        link = target / path.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    return target
