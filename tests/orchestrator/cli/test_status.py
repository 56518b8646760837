"""``orchestrator status`` of services that are named. That of a cluster: tests/orchestrator/cluster/test_leases.py."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.fake_services import serving, unused_endpoint
from tests.support.orchestrating import Cli


async def test_named_services_are_shown(orchestrator: Cli) -> None:
    nowhere = unused_endpoint()
    async with serving("verifier", active_sessions=3, free_kv_tokens=96, uptime_s=7200) as verifier:
        flags = ("status", "--verifier", verifier.endpoint, "--drafter", nowhere)
        code, shown, _ = await asyncio.to_thread(orchestrator, *flags)
        _, as_json, _ = await asyncio.to_thread(orchestrator, *flags, "--json")
    assert code == 0
    for told in (verifier.endpoint, "SERVING", "2 h", "3/8", "4,000/4,096", f"drafter {nowhere}: "):
        assert told in shown
    serves, lost = json.loads(as_json)["replicas"]
    assert serves["sessions"] == {"used": 3, "max": 8}
    assert lost["error"]


async def test_where_nobody_answers_it_fails(orchestrator: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(f"{{verifier: {{endpoints: [{unused_endpoint()}]}}, drafter: null}}")
    code, shown, _ = await asyncio.to_thread(orchestrator, "status", "--config", str(file))
    assert code == 1
    assert "UNKNOWN" in shown


def test_an_endpoint_that_is_none_is_refused(orchestrator: Cli) -> None:
    assert orchestrator("status", "--verifier", "here")[::2] == (2, "orchestrator: verifier: 'here' is not HOST:PORT\n")


def test_without_a_cluster_there_is_nothing_to_show(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    code, _, told = orchestrator("status")
    assert code == 1
    assert told.startswith("orchestrator: RAY_ADDRESS is local")
