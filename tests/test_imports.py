"""What importing costs, what the generated code needs, and what must not be in our code at all."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TOP_PACKAGES = ("specgate", "drafter_svc", "verifier_svc", "orchestrator", "specgate_lab")
GENERATED = sorted(path.stem for path in (ROOT / "specgate" / "v1").glob("*_pb2*.py"))
SOURCES = sorted(
    path
    for package in (*TOP_PACKAGES, "specgate_vllm")
    for path in (ROOT / package).rglob("*.py")
    if path.parent.name != "v1"
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
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def names_of_others() -> frozenset[str]:
    """Return what our code takes of other packages, as dotted names: ``torch.nn``, ``torch.cuda._sleep``."""
    ours = {*sys.stdlib_module_names, *TOP_PACKAGES, "specgate_vllm"}
    found: set[str] = set()
    for path in SOURCES:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        origins: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                origins |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                origins |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        attributes = (ast.unparse(node).partition(".") for node in nodes if isinstance(node, ast.Attribute))
        taken = [f"{origins[root]}.{name}" for root, _, name in attributes if root in origins]
        found.update(name for name in (*origins.values(), *taken) if name.partition(".")[0] not in ours)
    return frozenset(found)


@cache
def requirements() -> dict[str, list[Requirement]]:
    """Return what pyproject.toml says of the distributions that bring a package, by its name in imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = chain(project["dependencies"], *project["optional-dependencies"].values())
    declared, brought_by = [Requirement(line) for line in lines], packages_distributions()
    tops = {name.partition(".")[0] for name in names_of_others()}
    names = {top: {canonicalize_name(one) for one in brought_by.get(top, [top])} for top in tops}
    return {top: [one for one in declared if canonicalize_name(one.name) in names[top]] for top in tops}


def test_the_command_line_leaves_the_heavy_packages_out() -> None:
    code = "import sys, orchestrator.cli.main; print(*sys.modules.keys() & {'torch', 'transformers', 'ray'})"
    assert run_python(code).split() == []


_WITHOUT_THE_LAB = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *args):
        return None if name.partition(".")[0] == "specgate_lab" else self.finder.find_spec(name, *args)
sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""


def test_a_serving_installation_may_lack_what_measures() -> None:
    code = f"{_WITHOUT_THE_LAB}from orchestrator.cli.main import run; run(['--help'])"
    shown = set(re.findall(r"^│ ([a-z][a-z-]*) ", run_python(code), re.MULTILINE))
    assert shown == {"generate", "chat", "serve", "status", "doctor", "config", "keys"}


def test_what_serves_starts_without_what_measures() -> None:
    code = "import sys; from orchestrator.cli.main import run; run(['serve', '--help'])"
    assert run_python(f"{code}; print('specgate_lab' in sys.modules)").split()[-1] == "False"


_AS_GRPC_COMES = """
import os, sys
class Look:
    def find_spec(self, name, *_):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))
sys.meta_path.insert(0, Look())
"""


@pytest.mark.parametrize("module", ["orchestrator.cli.main", "orchestrator.services.streams", "specgate.service.main"])
def test_grpc_is_told_how_to_poll_before_it_comes_and_knows_what_it_is_told(module: str) -> None:
    code = f"{_AS_GRPC_COMES}import {module}, grpc; grpc.insecure_channel('localhost:1').close()\n"
    code += "assert 'GRPC_EXPERIMENTS' not in os.environ"
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["-event_engine_client,-event_engine_listener"]
    assert "experiment" not in result.stderr


def test_what_is_imported_is_declared() -> None:
    # Ray brings a psutil of its own.
    assert {top for top, declared in requirements().items() if not declared} == {"psutil"}


def test_who_lends_a_private_name_has_an_upper_bound() -> None:
    private = {name for name in names_of_others() if re.fullmatch(r"[\w.]+\._[a-z][\w.]*", name)}
    assert "torch.cuda._sleep" in private
    bounds = {name: [str(one.specifier) for one in requirements()[name.partition(".")[0]]] for name in private}
    assert {name: found for name, found in bounds.items() if not any("<" in one for one in found)} == {}


def test_generated_code_imports_without_a_warning() -> None:
    assert GENERATED
    run_python("\n".join(f"import specgate.v1.{module}" for module in GENERATED), "-W", "error")


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
