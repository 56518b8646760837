"""Two Ray nodes in two network namespaces, the verifier on one and the drafter on the other."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "deploy" / "two_nodes.sh"


def permits_namespaces() -> bool:
    unshare = shutil.which("unshare")
    if os.geteuid() or not (unshare and shutil.which("ip") and shutil.which("curl")):
        return False
    return subprocess.run([unshare, "--net", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not permits_namespaces(), reason="needs root, ip and curl")
def test_a_stream_over_two_nodes() -> None:
    pytest.importorskip("ray")
    shown = subprocess.run([SCRIPT, "local"], check=False, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    sources = [source for event in events for source in event["choices"][0]["sources"]]
    assert len(sources) == 24
    assert "accepted" in sources
    nodes = {line.split()[0]: line.split()[1] for line in lines if "'role'" in line}
    assert nodes == {"Gateway": "10.184.0.1", "Verifier": "10.184.0.1", "Drafter": "10.184.0.2"}
