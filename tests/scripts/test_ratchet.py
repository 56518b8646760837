"""The ratchet counts what git tracks, and tells what has grown."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_lines_of_tracked_product_and_tests_are_counted(script: Callable[[str], Any], tmp_path: Path) -> None:
    files = ["package/a.py", "deploy/b.py", "tests/c.py", "scripts/d.py", "specgate/v1/e.py", "package/f.txt"]
    for name in [*files, "package/untracked.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n2\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", *files], check=True)
    ratchet = script("ratchet")
    assert (ratchet.lines(tmp_path, of_tests=False), ratchet.lines(tmp_path, of_tests=True)) == (4, 2)


def test_what_has_grown_is_told_with_the_way_out(script: Callable[[str], Any]) -> None:
    limits = {"test_lines": {"most": 9, "why": "x"}, "docs_words": {"most": 5, "why": "x"}}
    (told,) = script("ratchet").problems({"test_lines": 10, "docs_words": 5}, limits)
    assert told.startswith("test_lines: 10 is above 9. ")
    assert "scripts/ratchet.toml" in told
