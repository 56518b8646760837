"""The script that measures forwards runs, on whatever device there is."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "measure_forward.py"


def test_a_tiny_model_is_measured_on_the_cpu() -> None:
    command = [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--dtype", "float32", "--threads", "1"]
    done = subprocess.run([*command, "--json"], check=True, timeout=110, capture_output=True, text=True)
    assert "tiny: attention by varlen, 10 graphs" in done.stderr
    report = json.loads(done.stdout)
    assert report["device"] == "cpu"
    measured = {(one["sequences"], one["rows"]): one for one in report["forwards"]}
    assert list(measured) == [(sequences, rows) for sequences in (1, 8) for rows in (1, 4, 6, 8)]
    for (sequences, _), one in measured.items():
        assert min(one["floor_us"], one["eager_us"], one["huggingface_us"]) > 0
        assert (one["graphs_us"] is not None) == (sequences == 1)
