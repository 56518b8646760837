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
NINE, NOON, NIGHT, SLOW = (f"tests/test_shop.py::test_{name}" for name in ("nine", "noon", "night", "slow"))
SETTINGS = '[pytest]\naddopts = -m "not slow"\nmarkers = slow\n'
ROOT = Path(__file__).resolve().parents[2]
LISTS = {"breaks": [], "planted": ["--planted"]}


@pytest.mark.parametrize(
    ("name", "before", "after", "tests", "found_by", "problem"),
    [
        ("breaks", "9 <= hour", "9 < hour", [NOON, NINE], NINE, ""),
        ("breaks", "hour < 17", "hour <= 17", [NOON, NINE], "", "no test fails"),
        ("breaks", "hour < 18", "hour <= 18", [NINE], "", "its line is 0 times in shop.py, not once"),
        ("breaks", "hour", "minute", [NINE], "", "its line is 2 times in shop.py, not once"),
        ("breaks", "9 <= hour", "9 < hour", [NIGHT], "", f"fails without the break: {NIGHT}"),
        ("breaks", "9 <= hour", "9 <= (hour", [NINE], "", "no test is run: "),
        # By a planted fault every row fails, whatever its marks.
        ("planted", "9 <= hour", "9 < hour", [NINE, SLOW], NINE, ""),
        ("planted", "9 <= hour", "9 < hour", [NINE, NOON], "", "not every row fails: "),
    ],
)
def test_a_break_is_found_or_told(
    name: str,
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
    entries = "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items())
    report, root = tmp_path / "report.json", tmp_path / "checkout"
    files = {"shop.py": PRODUCT, "tests/test_shop.py": TESTS, f"tests/{name}.toml": f"[[break]]\n{entries}\n"}
    (root / "tests").mkdir(parents=True)
    for path, text in {**files, "pytest.ini": SETTINGS}.items():
        (root / path).write_text(text, "utf-8")
    subprocess.run(["git", "init", "--quiet", root], check=True)

    code = script("breaks").main([*LISTS[name], "--json", str(report)], root)

    (result,) = json.loads(report.read_text("utf-8"))
    assert (code, result["found_by"]) == (0 if found_by else 1, found_by)
    assert result["problem"].startswith(problem)
    assert bool(result["problem"]) is not bool(found_by)
    assert (found_by or problem) in capsys.readouterr().out
    assert (root / "shop.py").read_text("utf-8") == PRODUCT


@pytest.mark.parametrize("name", LISTS)
def test_each_break_can_be_made_and_each_test_of_it_exists(script: Callable[[str], Any], name: str) -> None:
    breaks = script("breaks")
    for one in breaks.read(ROOT / f"tests/{name}.toml"):
        assert breaks.place_problem(one, ROOT) == "", one.promise
        # An id may be that of a whole file.
        for file, *names in (test.partition("[")[0].split("::") for test in one.tests):
            text = (ROOT / file).read_text("utf-8")
            assert all(f"def {function}(" in text for function in names[-1:]), one.promise


def test_each_row_has_a_planted_fault(script: Callable[[str], Any]) -> None:
    planted = script("breaks").read(ROOT / "tests/planted.toml")
    named = {test.partition("[")[0] for one in planted for test in one.tests}
    for file in (*ROOT.glob("tests/chaos/**/test_*.py"), *ROOT.glob("tests/clients/test_*.py")):
        rows = re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
        assert {f"{file.relative_to(ROOT)}::{row}" for row in rows} <= named
