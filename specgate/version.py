"""Which specgate this is: its version, the commit that it is of, and when it was built.

A checkout asks git; a package has the file that its build wrote (setup.py). Only the standard library is needed.
"""

import json
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specgate import __version__

BUILT = "specgate/built.json"
"""The commit and the date of a package, from the root on; a checkout has no such file."""
_ROOT = Path(__file__).parent.parent
_ANSWER_WITHIN_S = 10.0


def commit() -> str | None:
    """Return the commit, "+" behind it where a checkout has changes; None where nobody knows.

    Results themselves are no change: one command may write several.
    """
    if not (_ROOT / ".git").exists():
        return _built().get("commit")
    found = answer_of("git", "-C", str(_ROOT), "rev-parse", "--short=12", "HEAD")
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    changes = answer_of("git", "-C", str(_ROOT), *status)
    return f"{found}{'+' if changes else ''}" if found else None


def one_line() -> str:
    """Return the version, the commit, the date of the build, and the versions of Python and torch."""
    known, date = commit(), _built().get("date")
    parts = [
        f"commit {known}" if known else "unknown commit",
        *([f"built {date}"] if date else []),
        f"Python {platform.python_version()}",
        f"torch {_torch()}",
    ]
    return f"specgate {__version__} ({', '.join(parts)})"


def answer_of(program: str, *arguments: str) -> str:
    """Return what a program prints; nothing where it is missing or fails."""
    if shutil.which(program) is None:
        return ""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _built() -> dict[str, str]:
    file = _ROOT / BUILT
    built: dict[str, str] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return built


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "is missing"
