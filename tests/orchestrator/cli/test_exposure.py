"""``orchestrator doctor --serve``: what listens where, and what of it is open."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.orchestrating import Cli


def findings(orchestrator: Cli, tmp_path: Path, config: str) -> dict[tuple[str, str], Any]:
    file = tmp_path / "serve.yaml"
    file.write_text(config)
    code, shown, _ = orchestrator("doctor", "--serve", "--config", str(file), "--json")
    assert code == 0
    return {(one["subject"], one["check"]): one for one in json.loads(shown)["findings"]}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")


def test_by_default_nothing_is_open(orchestrator: Cli, tmp_path: Path) -> None:
    found = findings(orchestrator, tmp_path, "")
    assert {one["status"] for one in found.values()} == {"ok"}
    assert found["gateway", "http"]["message"] == "127.0.0.1:8000, plain text, no keys"
    assert found["gateway", "grpc"]["message"] == "127.0.0.1:8001, plain text, no keys"
    assert found["verifier", "grpc"]["message"] == "127.0.0.1:any free port, plain text; each session needs a lease"
    assert ("drafter", "metrics") in found
    assert found["machine", "ports"]["message"].startswith("no Ray is seen to run here")


OPEN = "{host: 0.0.0.0, insecure: true}"
TLS = "{host: 0.0.0.0, tls: {certificate: a, key: b}}"
MUTUAL = "{host: 0.0.0.0, tls: {certificate: a, key: b, client_ca: c}}"


@pytest.mark.parametrize(
    ("config", "who", "status", "told"),
    [
        (f"gateway: {{http: {OPEN}}}", ("gateway", "http"), "warning", "anyone who reaches it may generate"),
        (f"gateway: {{http: {OPEN}, keys_file: k}}", ("gateway", "http"), "warning", "reads prompts, answers and keys"),
        (f"gateway: {{http: {TLS}}}", ("gateway", "http"), "warning", "anyone who reaches it may generate"),
        (f"gateway: {{http: {TLS}, keys_file: k}}", ("gateway", "http"), "ok", ""),
        (f"gateway: {{grpc: {MUTUAL}}}", ("gateway", "grpc"), "ok", ""),
        (f"gateway: {{operations: {OPEN}}}", ("gateway", "operations"), "warning", "asks for no key"),
        (f"verifier: {{listen: {TLS}}}", ("verifier", "grpc"), "warning", "give tls with client_ca"),
        (f"verifier: {{listen: {MUTUAL}}}", ("verifier", "grpc"), "ok", ""),
        ("drafter: {metrics: {host: node, insecure: true}}", ("drafter", "metrics"), "warning", "asks for no key"),
    ],
)
def test_what_is_open_is_told_with_what_to_do(
    orchestrator: Cli, tmp_path: Path, config: str, who: tuple[str, str], status: str, told: str
) -> None:
    finding = findings(orchestrator, tmp_path, config)[who]
    assert finding["status"] == status
    assert told in finding["advice"]
    assert bool(finding["advice"]) == bool(told)
