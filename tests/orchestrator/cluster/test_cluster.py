"""What is deployed, and on which Ray."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("ray")

import ray

from orchestrator.api.settings.replicas import Placement
from orchestrator.cluster.deploy import _cause
from orchestrator.cluster.replica import actor_options
from tests.support.ray_cluster import RAY_MARKS, Cluster

pytestmark = RAY_MARKS


def test_a_replica_goes_where_its_placement_says(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(num_cpus=0.5, num_gpus=0.25, resources={"big": 1}, node_labels={"role": "verifier"})
    assert actor_options(placement) == {
        "num_cpus": 0.5,
        "num_gpus": 0.25,
        "resources": {"big": 1},
        "label_selector": {"role": "verifier"},
    }
    # Neither a cluster with a GPU nor one without is started for this.
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    for num_gpus, wanted in ((2.0, 1.0), (0.0, 0.0)):
        monkeypatch.setattr(ray, "cluster_resources", lambda num_gpus=num_gpus: {"GPU": num_gpus})
        assert actor_options(Placement())["num_gpus"] == wanted
        assert actor_options(Placement(), has_model=False)["num_gpus"] == 0


def test_the_cause_of_a_failed_deployment_is_one_line() -> None:
    # As Serve tells it of a deployment that failed, which takes it a minute.
    trace = "The deployment failed\n  File x\nspecgate.errors.ModelLoadError: /x: no safetensors\n\nThe above happened"
    assert _cause(trace, "") == "ModelLoadError: /x: no safetensors"
    assert _cause("a\nb\n") == "b"


@pytest.mark.parametrize("token", ["", "wrong", None])
def test_the_cluster_asks_for_a_token(ray_cluster: Cluster, token: str | None) -> None:
    right = (Path.home() / ".ray" / "auth_token").read_text().strip()
    metadata = (("authorization", f"Bearer {right if token is None else token}"),)
    with grpc.insecure_channel(ray_cluster.address) as channel:
        list_nodes: Any = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        if token is None:
            assert list_nodes(b"", metadata=metadata, timeout=10)
            return
        with pytest.raises(grpc.RpcError) as refused:
            list_nodes(b"", metadata=metadata if token else None, timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_ray_of_our_own_is_open_to_no_other_machine_and_to_our_other_commands() -> None:
    # A program of its own: a process has one Ray, and this one has the tests' cluster.
    program = [sys.executable, "-m", "tests.orchestrator.cluster.local_ray"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"open": [], "visitor": "joined"}
