"""The script that breaks the product on purpose, on a product of one line; and the lists of the real product."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRODUCT = "def is_open(hour):\n    return 9 <= hour < 17\n"
TESTS = """\
import pytest
from shop import is_open

def test_nine(): assert is_open(9)
def test_noon(): assert is_open(12)
def test_night(): assert is_open(24)
@pytest.mark.slow
def test_slow(): assert is_open(9)
"""
MARKS = '[pytest]\naddopts = -m "not slow"\nmarkers = slow\n'
NINE, NOON, NIGHT, SLOW = (f"tests/test_shop.py::test_{name}" for name in ("nine", "noon", "night", "slow"))
ROOT = Path(__file__).resolve().parents[2]


def checkout(root: Path, name: str, before: str, after: str, tests: list[str]) -> Path:
    """Make a checkout whose list of this name has one break."""
    entry = {"promise": "it is open", "file": "shop.py", "before": before, "after": after, "tests": tests}
    entries = "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry.items())
    files = {"shop.py": PRODUCT, "tests/test_shop.py": TESTS, name: f"[[break]]\n{entries}\n", "pytest.ini": MARKS}
    (root / "tests").mkdir(parents=True)
    for file, text in files.items():
        (root / file).write_text(text, "utf-8")
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


@pytest.mark.parametrize(
    ("before", "after", "tests", "found_by", "problem"),
    [
        ("9 <= hour", "9 < hour", [NOON, NINE], NINE, ""),
        ("hour < 17", "hour <= 17", [NOON, NINE], "", "no test fails"),
        ("hour < 18", "hour <= 18", [NINE], "", "its line is 0 times in shop.py, not once"),
        ("hour", "minute", [NINE], "", "its line is 2 times in shop.py, not once"),
        ("9 <= hour", "9 < hour", [NIGHT], "", f"fails without the break: {NIGHT}"),
        ("9 <= hour", "9 <= (hour", [NINE], "", "no test is run: "),
    ],
)
def test_a_break_is_found_or_told(
    before: str,
    after: str,
    tests: list[str],
    found_by: str,
    problem: str,
    script: Callable[[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "report.json"
    root = checkout(tmp_path / "checkout", "tests/breaks.toml", before, after, tests)

    code = script("breaks").main(["--json", str(report)], root)

    (result,) = json.loads(report.read_text("utf-8"))
    assert (code, result["found_by"]) == (0 if found_by else 1, found_by)
    assert result["problem"].startswith(problem)
    assert bool(result["problem"]) is not bool(found_by)
    assert (found_by or problem) in capsys.readouterr().out
    assert (root / "shop.py").read_text("utf-8") == PRODUCT


@pytest.mark.parametrize(
    ("tests", "problem"), [([NINE, SLOW], ""), ([NINE, NOON], "not every row fails: 1 failed, 1 passed")]
)
def test_by_a_planted_fault_every_row_fails_whatever_its_marks(
    tests: list[str], problem: str, script: Callable[[str], Any], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    root = checkout(tmp_path / "checkout", "tests/planted.toml", "9 <= hour", "9 < hour", tests)
    code = script("breaks").main(["--planted", "--json", str(report)], root)
    (result,) = json.loads(report.read_text("utf-8"))
    assert (code, result["found_by"]) == ((1, "") if problem else (0, NINE))
    assert result["problem"].startswith(problem)


@pytest.mark.parametrize("name", ["breaks.toml", "planted.toml"])
def test_each_break_can_be_made_and_each_test_of_it_exists(script: Callable[[str], Any], name: str) -> None:
    breaks = script("breaks")
    for one in breaks.read(ROOT / "tests" / name):
        assert breaks.place_problem(one, ROOT) == "", one.promise
        # An id may be that of a whole file.
        for file, *names in (test.partition("[")[0].split("::") for test in one.tests):
            text = (ROOT / file).read_text("utf-8")
            assert all(f"def {name}(" in text for name in names[-1:]), one.promise


def test_each_row_has_a_planted_fault(script: Callable[[str], Any]) -> None:
    planted = script("breaks").read(ROOT / "tests" / "planted.toml")
    named = {test.partition("[")[0] for one in planted for test in one.tests}
    files = [*ROOT.glob("tests/chaos/**/test_*.py"), *ROOT.glob("tests/clients/test_*.py")]
    found = {file: re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE) for file in files}
    rows = {f"{file.relative_to(ROOT)}::{function}" for file, functions in found.items() for function in functions}
    assert rows - named == set()
