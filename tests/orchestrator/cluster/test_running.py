"""How often Serve's controller is asked which replicas run."""

import asyncio
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray import serve

from orchestrator.cluster.running import FRESH_S, Replicas
from tests.support.ray_cluster import RAY_MARKS

pytestmark = RAY_MARKS

HANDLE = SimpleNamespace(app_name="app", deployment_name="Verifier")


def told(state: str) -> SimpleNamespace:
    """What Serve says of one replica in ``state``."""
    deployment = SimpleNamespace(status="UPDATING", replica_states={state: 1})
    return SimpleNamespace(applications={"app": SimpleNamespace(deployments={"Verifier": deployment})})


async def test_many_who_wait_ask_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at_s: list[float] = []

    def status() -> SimpleNamespace:
        asked_at_s.append(time.monotonic())
        return told("STARTING")

    monkeypatch.setattr(serve, "status", status)
    replicas = Replicas("verifier", HANDLE)

    async def wait(number: int) -> None:
        await asyncio.sleep(FRESH_S * number / 64)
        for _ in range(4):
            assert await replicas.expected(30.0)
            await asyncio.sleep(FRESH_S)

    await asyncio.gather(*map(wait, range(64)))
    assert len(asked_at_s) > 1
    assert min(later - sooner for sooner, later in pairwise(asked_at_s)) >= FRESH_S


async def test_an_answer_holds_for_a_while_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas("verifier", HANDLE)
    for state, runs in (("STARTING", False), ("RUNNING", True)):
        monkeypatch.setattr(serve, "status", lambda state=state: told(state))
        assert await replicas.any_running() is runs
        await asyncio.sleep(FRESH_S)
