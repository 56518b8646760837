"""What importing costs, what the generated code needs, and what must not be in our code at all."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP_PACKAGES = ("specgate", "drafter_svc", "verifier_svc", "orchestrator")
GENERATED = sorted(path.stem for path in (ROOT / "specgate" / "v1").glob("*_pb2*.py"))
SOURCES = sorted(
    path
    for package in TOP_PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.parent != ROOT / "specgate" / "v1"
)
FORBIDDEN = {
    "pickle": r"\b(?:import|from)\s+(?:pickle|cloudpickle|dill|marshal|shelve)\b",
    "torch.load": r"\btorch\.load\(",
    "eval": r"(?<![\w.])eval\(",
    "exec": r"(?<![\w.])exec\(",
    "trust_remote_code": r"trust_remote_code\W+True",
    "yaml.load": r"\byaml\.(?:unsafe_|full_)?load\(",
    "shell": r"shell\s*=\s*True|\bos\.system\(",
}


def run_python(code: str, *flags: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    command = [sys.executable, *flags, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_cli_leaves_the_heavy_packages_out() -> None:
    code = "import sys, orchestrator.cli; print(*sys.modules.keys() & {'torch', 'transformers', 'ray'})"
    assert run_python(code).split() == []


def test_there_is_generated_code() -> None:
    assert GENERATED


@pytest.mark.parametrize("module", GENERATED)
def test_generated_code_imports_without_a_warning(module: str) -> None:
    run_python(f"import specgate.v1.{module}", "-W", "error")


def test_the_wheel_lists_every_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for top in TOP_PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_nothing_that_arrives_is_run_as_code(name: str) -> None:
    pattern = re.compile(FORBIDDEN[name])
    assert SOURCES
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []
