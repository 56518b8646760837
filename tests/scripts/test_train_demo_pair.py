"""The script that trains pairs: a tiny one, and ids that do not fit into 16 bits."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(ROOT / "scripts" / "train_demo_pair.py"), "--shapes", "tiny")
STEPS = ("--target-steps", "2", "--draft-steps", "2", "--continuations", "1", "--corpus-rows", "8", "--batch", "2")


def test_a_tiny_pair_is_trained_and_shares_its_tokenizer(tmp_path: Path) -> None:
    command = [*COMMAND, "--texts", str(ROOT / "docs"), "--out", str(tmp_path), *STEPS]
    done = subprocess.run(command, check=False, timeout=110, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "training.json").read_text())
    assert report["target_parameters"] == report["draft_parameters"] == 512 * 16 + 16 * (4 * 16 + 3 * 32) + 3 * 16
    assert len({(tmp_path / role / "tokenizer.json").read_bytes() for role in ("target", "draft")}) == 1


def test_other_shapes_do_not_take_the_place_of_the_bundled_pair() -> None:
    done = subprocess.run(COMMAND, check=False, timeout=60, capture_output=True, text=True)
    assert (done.returncode, "--out of its own" in done.stderr) == (2, True)


@pytest.mark.parametrize(("largest", "dtype"), [(32_767, torch.int16), (49_151, torch.int32)])
def test_ids_are_kept_as_small_as_they_fit(script: Callable[[str], Any], largest: int, dtype: torch.dtype) -> None:
    kept = script("train_demo_pair").small(torch.tensor([0, largest]))
    assert kept.dtype is dtype
    assert kept.tolist() == [0, largest]
