"""What a program that embeds the orchestrator calls."""

import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator import open_orchestrator
from specgate.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[3]


def test_every_name_is_there_without_torch() -> None:
    names = ", ".join(orchestrator.__all__)
    code = (
        f"import sys; from orchestrator import {names}; print(*sys.modules.keys() & {{'torch', 'transformers', 'ray'}})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    with pytest.raises(ImportError, match="nothing"):
        from orchestrator import nothing  # noqa: F401


def test_the_example_writes_a_text() -> None:
    command = [sys.executable, str(ROOT / "examples" / "embed.py")]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *text, statistics = done.stdout.splitlines()
    assert "".join(text).strip()
    assert float(statistics.removesuffix(" tokens per target forward")) > 1.0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"in_process": True, "session_idle_s": 9}, "session_idle_s"),
        ({"device": "abacus"}, "device"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"verifiers": ["nowhere"]}, "verifier"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        async with open_orchestrator(**arguments):
            pass
    assert refused.value.field == field
