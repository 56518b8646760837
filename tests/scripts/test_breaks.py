"""The script that breaks the product on purpose, on a product of one line."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PRODUCT = "def is_open(hour):\n    return 9 <= hour < 17\n"
TESTS = """\
from shop import is_open

def test_nine(): assert is_open(9)
def test_noon(): assert is_open(12)
def test_night(): assert is_open(24)
"""
NINE, NOON, NIGHT = (f"tests/test_shop.py::test_{name}" for name in ("nine", "noon", "night"))


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
    entry = {"promise": "it is open", "file": "shop.py", "before": before, "after": after, "tests": tests}
    entries = "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry.items())
    report, root = tmp_path / "report.json", tmp_path / "checkout"
    files = {"shop.py": PRODUCT, "tests/test_shop.py": TESTS, "tests/breaks.toml": f"[[break]]\n{entries}\n"}
    (root / "tests").mkdir(parents=True)
    for name, text in files.items():
        (root / name).write_text(text, "utf-8")
    subprocess.run(["git", "init", "--quiet", root], check=True)

    code = script("breaks").main(["--json", str(report)], root)

    (result,) = json.loads(report.read_text("utf-8"))
    assert (code, result["found_by"]) == (0 if found_by else 1, found_by)
    assert result["problem"].startswith(problem)
    assert bool(result["problem"]) is not bool(found_by)
    assert (found_by or problem) in capsys.readouterr().out
    assert (root / "shop.py").read_text("utf-8") == PRODUCT
