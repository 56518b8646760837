"""The script that trains pairs: a tiny one, and ids that do not fit into 16 bits."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(ROOT / "scripts" / "train_demo_pair.py"), "--shapes", "tiny")
STEPS = ("--target-steps", "2", "--draft-steps", "2", "--continuations", "1", "--corpus-rows", "8", "--batch", "2")


def test_a_tiny_pair_is_trained_and_shares_its_tokenizer(tmp_path: Path) -> None:
    command = [*COMMAND, "--texts", str(ROOT / "docs"), "--out", str(tmp_path), *STEPS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "training.json").read_text())
    assert report["target_parameters"] == report["draft_parameters"] == 512 * 16 + 16 * (4 * 16 + 3 * 32) + 3 * 16
    assert len({(tmp_path / role / "tokenizer.json").read_bytes() for role in ("target", "draft")}) == 1
