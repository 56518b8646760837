"""The script that measures forwards runs, on whatever device there is."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "measure_forward.py"


def test_a_tiny_model_is_measured_on_the_cpu() -> None:
    command = [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--dtype", "float32", "--threads", "1"]
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    assert "tiny: attention by varlen, 10 graphs" in done.stderr
    report = json.loads(done.stdout)
    assert {one["sequences"] for one in report["forwards"]} == {1, 8}
    for one in report["forwards"]:
        assert min(one["floor_us"], one["eager_us"], one["huggingface_us"]) > 0
        assert (one["graphs_us"] is not None) == (one["sequences"] == 1)
