"""The Ray under ``orchestrator serve`` is killed: the command says so and leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

FLAGS = ["--json-events", "--set", "drafter=null", "--set", "gateway.http.port=0", "--set", "gateway.grpc.port=0"]
ENDS_WITHIN_S = 120.0


def kill_ray_of(parent: int) -> None:
    """Kill what ``parent`` has started: its Ray's head and the node's raylet."""
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    assert len(children) >= 2
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def test_a_cluster_that_dies_ends_the_command_with_one_line() -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "serve", *FLAGS]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "ready":
                break
        kill_ray_of(process.pid)
        _, errors = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 1, errors
    assert errors.count("orchestrator: ") == 1
    assert "Traceback" not in errors
    assert "the Ray cluster does not answer" in errors
