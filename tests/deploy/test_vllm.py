"""deploy/vllm: what Kubernetes, compose, hadolint and our own programs say of it, and that its names agree."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgate_vllm import hook
from tests.deploy.containers import DEPLOY, documents, endpoint_asked, service_of
from tests.deploy.schemas import check_manifest
from tests.deploy.test_compose import configured
from tests.deploy.test_image import faults_of, needs_hadolint

FOLDER = DEPLOY / "vllm"
STUBS = {
    "drafter-svc": 'echo "drafter-svc $*"\n',
    "python3": 'echo "$SPECGATE_DRAFTERS: $*"\n',
}


def speculation_of(words: list[str]) -> Any:
    (value,) = (word.partition("=")[2] for word in words if word.startswith("--speculative-config="))
    return json.loads(value)


def check_speculation(read: Any) -> None:
    """It names a class that is there."""
    assert read == {"method": "custom_class", "model": "specgate_vllm.Proposer", "num_speculative_tokens": 4}


def test_compose_takes_it_and_vllm_asks_the_drafter() -> None:
    done = configured(FOLDER, "compose.yaml")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    drafter = service_of(services["drafter"]["command"])
    assert services["vllm"]["environment"]["SPECGATE_DRAFTERS"] == f"drafter:{drafter.port}"
    assert endpoint_asked(services["drafter"]["healthcheck"]["test"][1:]) == f"127.0.0.1:{drafter.port}"
    assert "ports" not in services["drafter"]
    check_speculation(speculation_of(services["vllm"]["command"]))
    build = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["vllm"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"


def test_kubernetes_takes_it_and_its_names_agree() -> None:
    manifests = documents((FOLDER / "kubernetes.yaml").read_text())
    for manifest in manifests:
        check_manifest(manifest)
    named: Any = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in manifests}
    pods = {name: named["Deployment", name]["template"] for name in ("drafter", "vllm")}
    drafter, vllm = (pods[name]["spec"]["containers"][0] for name in pods)
    port = service_of(drafter["command"]).port
    assert vllm["env"][0]["value"] == f"drafter:{port}"
    assert [one["containerPort"] for one in drafter["ports"]] == [port]
    for name, pod in pods.items():
        assert named["Service", name]["selector"] == pod["metadata"]["labels"]
    policy = named["NetworkPolicy", "drafter"]
    assert policy["podSelector"]["matchLabels"] == pods["drafter"]["metadata"]["labels"]
    assert policy["ingress"][0]["ports"] == [{"port": port}]
    check_speculation(speculation_of(vllm["args"]))


@needs_hadolint
def test_hadolint_finds_no_fault() -> None:
    assert faults_of(FOLDER / "Dockerfile") == ""


def test_the_image_is_of_the_version_that_it_is_written_for() -> None:
    (version,) = re.findall(r"^ARG VLLM=v(.+)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert version in hook.WRITTEN_FOR


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("two_machines.sh", "drafter", "--model", "D"), "drafter-svc --port 7002 --model D"),
        (("two_machines.sh", "check", "h:1"), ": -m specgate_vllm.check h:1"),
        (("two_machines.sh", "vllm", "h:1,g:2", "--model", "T"), "h:1,g:2: -m vllm.entrypoints.openai.api_server "),
        (("one_machine.sh", "--target", "T", "--draft", "D", "--cpu", "--", "--seed", "1"), "127.0.0.1:7002: -m vllm"),
    ],
)
def test_the_scripts_start_what_they_say(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (tmp_path / name).chmod(0o755)
    # The scripts put our own environment before PATH, where there is one.
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VLLM_PYTHON": str(tmp_path / "python3")}
    copied = tmp_path / "deploy"
    subprocess.run(["cp", "-r", DEPLOY, copied], check=True)
    command = [copied / "vllm" / words[0], *words[1:]]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    assert told in done.stdout
    if " -m vllm" in told:
        check_speculation(json.loads(re.findall(r"--speculative-config (\{.*?\})", done.stdout)[-1]))
