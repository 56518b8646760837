"""What a wheel, a source distribution and an editable installation hold, with a C compiler and without one."""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP_PACKAGES = ("specgate", "drafter_svc", "verifier_svc", "orchestrator", "specgate_lab")
LIBRARY = "specgate/runtime/cpu/libspecgate_cpu.so"
NATIVE = Path("specgate/runtime/cpu/native")
COMPILER = shutil.which(os.environ.get("CC") or sysconfig.get_config_var("CC").split()[0])
PYTHONS_FOLDER = "/where/python/was/built"
FLAGS_OF_PYTHON = f"-L{PYTHONS_FOLDER} -Wl,-rpath,{PYTHONS_FOLDER}"
NEEDS_NEWER_GLIBC = """
#include <math.h>
__attribute__((visibility("default"))) float of_the_test(float x) { return expf(x); }
"""
"""glibc has a newer expf since 2.27."""

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler: apt-get install gcc libc6-dev")

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is built from, in a folder of its own, because building writes there. It lacks the demo's pair."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    leave_out = shutil.ignore_patterns("__pycache__", "demo_pair", "*.so")
    for name in (*TOP_PACKAGES, "protos", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=leave_out)
    (tree / "specgate" / "demo_pair").mkdir()
    with (tree / NATIVE / "native.c").open("a") as source:
        source.write(NEEDS_NEWER_GLIBC)
    return tree


@pytest.fixture(scope="module")
def build(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a "wheel", an "sdist" or an "editable", as pip does, and return its file."""
    nowhere = tmp_path_factory.mktemp("no-programs")

    def run(what: str, *, compiler: bool = True, source: Path = tree) -> Path:
        folder = tmp_path_factory.mktemp(what)
        code = f"from setuptools import build_meta; build_meta.build_{what}({str(folder)!r})"
        env = {**os.environ, "LDFLAGS": FLAGS_OF_PYTHON}
        if not compiler:
            env |= {"PATH": str(nowhere), "CC": "cc"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=source, env=env, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (built,) = folder.iterdir()
        return built

    return run


@pytest.fixture(scope="module")
def wheel(build: Build) -> Path:
    return build("wheel")


@pytest.fixture(scope="module")
def plain_wheel(wheel: Path, build: Build) -> Path:
    """A wheel that is built without a compiler, in the tree where ``wheel`` was built with one."""
    return build("wheel", compiler=False)


def files_of(wheel: Path) -> set[str]:
    return set(ZipFile(wheel).namelist())


def version_of(wheel: Path, folder: Path) -> str:
    """Return what ``orchestrator --version`` prints of the modules in ``wheel``."""
    ZipFile(wheel).extractall(folder)
    code = "from specgate.version import one_line; print(one_line())"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout


@needs_compiler
def test_a_wheel_is_for_every_python_and_for_what_has_its_glibc(wheel: Path, tmp_path: Path) -> None:
    python, abi, where = wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none")
    assert f"Tag: py3-none-{where}" in ZipFile(wheel).read("specgate-0.1.0.dist-info/WHEEL").decode()
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        pytest.skip("manylinux is for Linux with glibc")
    library = ZipFile(wheel).extract(LIBRARY, tmp_path)
    told = subprocess.run(["readelf", "--wide", "--version-info", library], check=True, capture_output=True)
    needed = max(int(minor) for minor in re.findall(rb"Name: GLIBC_2\.(\d+)", told.stdout))
    assert needed >= 27
    assert where == f"manylinux_2_{needed}_{platform.machine()}"


@needs_compiler
def test_the_library_needs_the_c_library_alone(wheel: Path, tmp_path: Path) -> None:
    library = Path(ZipFile(wheel).extract(LIBRARY, tmp_path))
    assert ctypes.CDLL(str(library)).specgate_cpu_best() in range(4)
    if sys.platform != "linux":
        pytest.skip("readelf is for Linux")
    told = subprocess.run(["readelf", "--wide", "--dynamic", library], check=True, capture_output=True)
    needed = set(re.findall(r"NEEDED.*\[(\w+)", told.stdout.decode()))
    assert needed <= {"libc", "libm", "ld"}
    data = library.read_bytes()
    assert PYTHONS_FOLDER.encode() not in data
    assert b".debug_info" not in data


@needs_compiler
def test_a_wheel_without_a_compiler_lacks_the_library_alone(wheel: Path, plain_wheel: Path) -> None:
    assert plain_wheel.name.endswith("-py3-none-any.whl")
    assert files_of(wheel) - files_of(plain_wheel) == {LIBRARY}
    assert files_of(plain_wheel) <= files_of(wheel)


def test_a_wheel_holds_what_is_imported_and_no_more(plain_wheel: Path) -> None:
    files = files_of(plain_wheel)
    assert {name.partition("/")[0] for name in files} == {*TOP_PACKAGES, "specgate-0.1.0.dist-info"}
    assert {Path(name).suffix for name in files} & {".c", ".h", ".so"} == set()
    expected = {str(path.relative_to(ROOT)) for top in TOP_PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == expected


@needs_compiler
def test_a_source_distribution_has_the_c_sources(tree: Path, build: Build) -> None:
    (tree / NATIVE / "of_the_test.h").touch()
    sources = build("sdist")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {str(path.relative_to(tree)) for path in (tree / NATIVE).iterdir()}
    assert {*expected, "setup.py", "pyproject.toml"} <= names
    assert len(expected) > 1
    assert LIBRARY not in names


@needs_compiler
def test_an_editable_installation_has_the_library_beside_its_sources(tree: Path, build: Build) -> None:
    """What an earlier one had goes when there is no compiler any more: it may be of other sources."""
    library = tree / LIBRARY
    build("editable")
    assert ctypes.CDLL(str(library)).specgate_cpu_best() in range(4)
    build("editable", compiler=False)
    assert not library.exists()


@needs_compiler
def test_sources_that_do_not_compile_are_no_reason_to_fail(tree: Path, build: Build) -> None:
    source = tree / NATIVE / "native.c"
    good = source.read_text()
    source.write_text("#error not for this processor\n")
    try:
        assert build("wheel").name.endswith("-py3-none-any.whl")
    finally:
        source.write_text(good)


def test_a_package_knows_its_commit_also_where_it_is_built_from_a_source_distribution(
    tree: Path, build: Build, tmp_path: Path
) -> None:
    checkout = shutil.copytree(tree, tmp_path / "checkout")
    git = ("git", "-C", str(checkout), "-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "x"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    with tarfile.open(build("sdist", source=checkout)) as archive:
        archive.extractall(tmp_path, filter="data")
    for source in (checkout, tmp_path / "specgate-0.1.0"):
        told = version_of(build("wheel", source=source), tmp_path / f"from-{source.name}")
        assert re.match(rf"specgate 0\.1\.0 \(commit {commit}, built 20\d\d-\d\d-\d\d, Python 3\.\d+\.", told), told


def test_a_package_that_is_built_without_git_says_so(plain_wheel: Path, tmp_path: Path) -> None:
    assert version_of(plain_wheel, tmp_path).startswith("specgate 0.1.0 (unknown commit, built 20")
