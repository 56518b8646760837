"""Scripts that take a round apart, that time forwards on a CPU, and that train pairs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgate.cpu_library import InstructionSet, instruction_set
from tests.support.services import PAIR

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def test_the_parts_of_a_round_add_up_to_it(tmp_path: Path) -> None:
    report = tmp_path / "round.json"
    command = [sys.executable, str(ROOT / "scripts" / "measure_round.py"), "--vocabulary", "512", "--rounds", "8"]
    subprocess.run([*command, "--json", str(report)], check=True, capture_output=True)
    measured = json.loads(report.read_text("utf-8"))
    assert len(measured) == 6
    for way, parts in measured.items():
        assert parts["rounds"] >= 7
        if "run-ahead" not in way:
            own = {part: us for part, us in parts.items() if part not in ("round", "beside its forwards", "rounds")}
            assert sum(own.values()) == pytest.approx(parts["round"])
            assert all(us > 0 for part, us in own.items() if part != "rest")
            assert ("drafter: gRPC turn" in own) == way.startswith("gRPC")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process on some cores")
def test_both_ways_of_a_forward_are_timed_and_agree(script: Callable[[str], Any], tmp_path: Path) -> None:
    report = tmp_path / "cpu-forwards.json"
    command = [sys.executable, str(ROOT / "scripts" / "measure_cpu.py"), str(PAIR / "draft"), "--cores", "1"]
    subprocess.run([*command, "--turns", "1", "--json", str(report)], check=True, capture_output=True)
    told = json.loads(report.read_text("utf-8"))
    forwards, prompts, weights = told["tables"].values()
    assert [row["rows"] for row in forwards] == [1, 2, 4, 6, 8, 17]
    assert [row["prompt tokens"] for row in prompts] == [512, 1000]
    is_packed = instruction_set() is not InstructionSet.NONE
    (row,) = weights
    assert (row["before by"], row["after by"].startswith("decoder")) == ("sdpa", is_packed)
    sizes = row["before, MB"], row["after, MB"], row["a forward reads, MB"]
    assert sizes == pytest.approx((3.8, 1.9, 1.9) if is_packed else (3.8, 3.8, 3.8), rel=0.02)
    assert float(row["logits apart"]) < 1e-4
    page = script("results").page({report.stem: told})
    assert "## Forwards on a CPU" in page
    assert page.count("| bundled draft | 1 |") == 6 + 2 + 1


def test_a_tiny_pair_is_trained_and_shares_its_tokenizer(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_demo_pair.py"), "--shapes", "tiny", "--texts"]
    command += [str(ROOT / "docs"), "--out", str(tmp_path), "--target-steps", "2", "--draft-steps", "2"]
    command += ["--continuations", "1", "--corpus-rows", "8", "--batch", "2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "training.json").read_text())
    assert report["target_parameters"] == report["draft_parameters"] == 512 * 16 + 16 * (4 * 16 + 3 * 32) + 3 * 16
    assert len({(tmp_path / role / "tokenizer.json").read_bytes() for role in ("target", "draft")}) == 1


def test_other_shapes_do_not_take_the_place_of_the_bundled_pair() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_demo_pair.py"), "--shapes", "tiny"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, "--out of its own" in done.stderr) == (2, True)
