""".github/workflows: each step runs one of our commands, or an action of a fixed version, with few rights."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_lines import problem_of
from tests.support.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OURS = re.compile(r"scripts/\w+|\.ci/\w+|make")
PINNED = re.compile(r"[\w.-]+/[\w.-]+@(v\d+|[0-9a-f]{40})")
RIGHTS_TO_WRITE = {"provenance": {"attestations", "id-token"}}

of_each = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)


def jobs_of(file: Path) -> dict[str, dict[str, Any]]:
    workflow = yaml.safe_load(file.read_text("utf-8"))
    assert workflow["permissions"] == {}
    jobs: dict[str, dict[str, Any]] = workflow["jobs"]
    return jobs


@of_each
def test_a_step_runs_one_of_our_commands_or_a_pinned_action(file: Path) -> None:
    steps = [step for job in jobs_of(file).values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"])
        else:
            words = shlex.split(step["run"])
            assert OURS.fullmatch(words[0])
            assert (ROOT / words[0]).is_file() or words[0] == "make"
            assert problem_of(words) is None


@of_each
def test_a_job_has_a_limit_and_the_rights_that_it_needs(file: Path) -> None:
    for name, job in jobs_of(file).items():
        assert 0 < job["timeout-minutes"] <= 120, name
        writes = {right for right, level in job["permissions"].items() if level != "read"}
        assert writes == RIGHTS_TO_WRITE.get(name, set())


def test_all_that_is_said_to_be_done_is() -> None:
    assert {name for file in WORKFLOWS for name in jobs_of(file)} == {"lint", "tests", "wheels", "image", "provenance"}
