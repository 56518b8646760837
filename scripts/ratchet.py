#!/usr/bin/env python3
"""Fail where the repository has more lines or words than scripts/ratchet.toml allows.

Lines are those of the Python files that git tracks. Product is every package and deploy/; tests is tests/. Words are
the prose that scripts/readability.py counts.
"""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import readability

ROOT = Path(__file__).resolve().parent.parent
LIMITS = "scripts/ratchet.toml"
NO_PRODUCT = ("tests/", "scripts/", "specgate/v1/", "specgate_vllm/v1/", "examples/", "clients/")


def lines(root: Path, *, of_tests: bool) -> int:
    """Return the lines of the tests, or of the product."""
    names = subprocess.run(["git", "-C", root, "ls-files", "*.py"], check=True, capture_output=True, text=True).stdout
    wanted = [name for name in names.splitlines() if name.startswith("tests/" if of_tests else NO_PRODUCT) == of_tests]
    # A file that is deleted and not yet committed is still tracked.
    files = [root / name for name in wanted if (root / name).is_file()]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def problems(counts: Mapping[str, int], limits: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each count that is above its limit."""
    return [
        f"{name}: {count:,} is above {limits[name]['most']:,}. Remove as much as you add; or raise `most` in {LIMITS}, "
        "and let its `why` say what the new lines are worth."
        for name, count in counts.items()
        if count > limits[name]["most"]
    ]


def main() -> int:
    counts = {
        "product_lines": lines(ROOT, of_tests=False),
        "test_lines": lines(ROOT, of_tests=True),
        "docs_words": readability.total(readability.pages()).words,
    }
    found = problems(counts, tomllib.loads((ROOT / LIMITS).read_text("utf-8")))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
