"""What a run did not run is told at its end; in CI a skipped test is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INI = """[pytest]
addopts = -m "not slow and not real" --strict-markers
markers =
    slow: takes long; `make slow` runs them
    real: needs real weights; `make real` runs them
    triton: needs Triton; `make triton` runs them
"""
SKIPS = """import pytest

from tests.support.programs import program

def test_runs():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_skips(number):
    program("no-such-program", "its-package")
"""
OTHERS = """import pytest

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.slow
@pytest.mark.real
def test_slow_and_real():
    pass
"""
FETCHED = "import pytest\nimport no_such_module\n\npytestmark = pytest.mark.triton\n"
ELSEWHERE = [
    "1 files of triton: needs Triton; `make triton` runs them",
    "1 tests of real: needs real weights; `make real` runs them",
    "1 tests of slow: takes long; `make slow` runs them",
]


def ended(folder: Path, *flags: str, **environ: str) -> tuple[int, list[str]]:
    """Run the tests of a folder; return the exit code and the lines of the list."""
    (folder / "pytest.ini").write_text(INI)
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    environ = {**inherited, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.left_out", "-p", "no:cacheprovider", *flags]
    done = subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True, text=True)
    _, _, told = done.stdout.partition(" did not run ")
    return done.returncode, [line for line in told.splitlines()[1:] if line and not line.startswith("=")]


@pytest.mark.parametrize(
    ("flags", "environ", "code", "verdict"),
    [
        ((), {}, 0, []),
        (("-n", "2"), {"CI": "true"}, 1, ["a skipped test is an error where CI is set"]),
    ],
    ids=["here", "in_processes_of_ci"],
)
def test_all_that_did_not_run_is_told(
    tmp_path: Path, flags: tuple[str, ...], environ: dict[str, str], code: int, verdict: list[str]
) -> None:
    for name, text in (("skips", SKIPS), ("others", OTHERS), ("fetched", FETCHED)):
        (tmp_path / f"test_{name}.py").write_text(text)
    skipped = "2 skipped: no no-such-program: apt-get install its-package (test_skips.py)"
    assert ended(tmp_path, *flags, **environ) == (code, [skipped, *ELSEWHERE, *verdict])


def test_what_other_commands_run_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS + "\ndef test_runs():\n    pass\n")
    assert ended(tmp_path, CI="true") == (0, ELSEWHERE[1:])
