"""The script that takes a round apart runs, and leaves no process behind."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure_round.py"


def test_every_part_is_timed() -> None:
    command = [sys.executable, str(SCRIPT), "--turns", "20", "--cold", "1"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    for part in ("messages of a round", "the event loop", "the engine's thread", "another process"):
        assert part in done.stdout
