"""The command for a rented GPU: whatever a step does, the day goes on, and what was found out is kept."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
import os, signal, subprocess, sys, time
from gpu_day_steps.step import CheckFailed

def passes(context):
    context.row(figure=1.5, argument=context.argument)
    return "all is well"

def fails(context):
    raise CheckFailed("no graph was recorded")

def raises(context):
    print("what the step printed")
    raise ValueError("a mistake")

def dies(context):
    context.progress("on the device")
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(context):
    lost = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    context.row(pid=lost.pid)
    time.sleep(600)
"""


class Day:
    """The harness with steps of the test's own."""

    def __init__(self, folder: Path, script: Callable[[str], Any]) -> None:
        self.step = script("gpu_day_steps.step")
        self.day = script("gpu_day_steps.day")
        self.out = folder / "out"
        self.lines: list[str] = []
        self.kept: list[int] = []
        self._where = self.step.Where(False, folder, folder)
        (folder / "steps_under_test.py").write_text(STEPS)

    def run(self, *names: str, limit_s: float = 60.0) -> dict[str, Any]:
        """Run the functions as steps; return what each came to, as the file has it."""
        steps = [self.step.Step(name, "a test", f"steps_under_test:{name}", 4.0, 0.0, "x") for name in names]
        plan = self.day.Plan(steps, self._where, self.out, limit_s, {"provenance": {"date": "today"}})
        self.day.run_day(plan, self._say)
        return {step["name"]: step for step in self.read()["steps"]}

    def read(self) -> Any:
        return json.loads((self.out / "gpu_day.json").read_text())

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("----") and (self.out / "gpu_day.json").exists():
            self.kept.append(len(self.read()["steps"]))


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Callable[[str], Any]) -> Day:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "scripts", tmp_path))))
    return Day(tmp_path, script)


def test_a_step_that_ends_badly_ends_alone_and_results_are_kept_after_each(day: Day) -> None:
    found = day.run("fails", "raises", "dies", "passes")
    assert {name: (step["status"], step["told"]) for name, step in found.items()} == {
        "fails": ("FAIL", "no graph was recorded"),
        "raises": ("FAIL", "ValueError: a mistake"),
        "dies": ("FAIL", "killed by signal 9; the last that it told: on the device"),
        "passes": ("PASS", "all is well"),
    }
    assert "what the step printed" in found["raises"]["last_log_lines"]
    assert found["passes"]["rows"] == [{"figure": 1.5, "argument": "x"}]
    assert day.kept == [1, 2, 3]
    assert day.read()["provenance"] == {"date": "today"}
    assert any(line.startswith("PASS  passes") and line.endswith("all is well") for line in day.lines)


def test_a_step_that_hangs_is_ended_with_all_that_it_started(day: Day) -> None:
    found = day.run("hangs", "passes")
    assert [step["status"] for step in found.values()] == ["FAIL", "PASS"]
    assert found["hangs"]["told"].startswith("ended after its limit of 4 s")
    stat = Path("/proc", str(found["hangs"]["rows"][0]["pid"]), "stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_there_is_no_time_for_is_skipped_and_an_earlier_day_is_kept_beside(day: Day) -> None:
    day.run("fails", limit_s=0.0)
    found = day.run("passes", "fails", limit_s=0.0)
    assert [step["status"] for step in found.values()] == ["SKIP", "SKIP"]
    assert found["passes"]["told"].startswith("no time left")
    assert sorted(file.name.partition("-")[0] for file in day.out.iterdir()) == ["gpu_day", "gpu_day.json"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("pass", "1 of 1 passed, 0 skipped"),
        ("assert False", "0 of 1 passed, 0 skipped; test_it"),
        ("pytest.skip('no card')", "0 of 1 passed, 1 skipped, exit code 0: nothing was shown. no card"),
    ],
)
def test_a_file_of_gpu_tests_must_pass_and_show_something(
    day: Day, script: Callable[[str], Any], tmp_path: Path, body: str, told: str
) -> None:
    marked = script("gpu_day_steps.marked_tests")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\n")
    (tmp_path / "tests" / "test_one.py").write_text(
        f"import pytest\n\n@pytest.{marked.MARK}\ndef test_it():\n    {body}\n\ndef test_without():\n    assert False\n"
    )
    context = day.step.Context(day.step.Where(False, tmp_path, tmp_path), "", 30.0)
    try:
        found = marked.run(context)
    except day.step.CheckFailed as failure:
        found = str(failure)
    assert found == told


def test_a_draft_agrees_as_often_as_was_planted(script: Callable[[str], Any]) -> None:
    acceptance = 0.6
    planted = script("gpu_day_steps.planted")
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"intermediate_size": 32, "vocab_size": 512}
    target, draft = (
        planted.plant(shape, planted.followers_of(512, share), torch.device("cpu"), torch.bfloat16)
        for share in (1.0, acceptance)
    )
    prompt = torch.tensor([[5]])
    text = target.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=400, do_sample=False)
    scores = target(text).logits[0].float()
    agreement = (draft(text).logits[0].argmax(-1) == scores.argmax(-1)).float().mean()
    assert abs(float(agreement) - acceptance) < 0.03
    best, second = scores.topk(2).values.unbind(-1)
    assert float((best - second).min()) > 1.0
    assert len(set(text[0].tolist())) == 401


def test_the_command_walks_dry_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "gpu_day"), "--wheels", str(tmp_path), "--dry", "--out", str(tmp_path), "--only"]
    environment = {**os.environ, "PYTHON": sys.executable}
    refused, walked = (
        subprocess.run([*command, step], check=False, capture_output=True, text=True, env=environment)
        for step in ("smoking", "smoke")
    )
    assert refused.returncode == 1
    assert "no step smoking; the steps are smoke, loads, phases, " in refused.stderr
    assert walked.returncode == 0, walked.stdout
    assert "PASS  smoke" in walked.stdout
    told = json.loads((tmp_path / "gpu_day.json").read_text())
    assert told["dry"] is True
    assert told["provenance"]["versions"]["torch"]
    assert [step["name"] for step in told["steps"]] == ["smoke"]
