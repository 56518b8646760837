"""``orchestrator serve`` on a Ray cluster; its replicas are killed under running streams."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("ray")

import ray
import yaml
from ray import serve

from orchestrator.cluster.pool import ServePool
from orchestrator.decode.request import Delta
from specgate.errors import ServiceUnavailable
from specgate.types import TokenSource
from specgate_lab.clients import GrpcClient
from tests.support.chaos_streams import FAULT_AT, SEEDED
from tests.support.fake_services import free_port
from tests.support.orchestrating import dialing
from tests.support.patience import wait_until
from tests.support.ray_cluster import RAY_MARKS, Cluster, kill, replicas
from tests.support.services import HELD_OUT_PROMPTS

pytestmark = RAY_MARKS

APP = "chaos"
MAX_SESSIONS = 2
NUM_VERIFIERS = 2
DRAIN_S = 20.0
SERVICE = {"max_sessions": MAX_SESSIONS, "max_queued_sessions": 2, "kv_tokens": 4096, "device": "cpu"}


@pytest.fixture(scope="module")
def command(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    placement = {"placement": {"num_cpus": 0.1}}
    settings = {
        "app_name": APP,
        "verifier": {**SERVICE, **placement, "replicas": NUM_VERIFIERS},
        "drafter": {**SERVICE, **placement, "max_sessions": NUM_VERIFIERS * MAX_SESSIONS},
        "gateway": {"http": {"port": free_port()}, "grpc": {"port": free_port()}, **placement},
        "drain_s": DRAIN_S,
    }
    file = tmp_path_factory.mktemp("serve") / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    arguments = [sys.executable, "-m", "orchestrator.cli", "serve", "--config", str(file), "--json-events"]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        # The cluster is others' too: the application must not outlive its tests, whichever of them were chosen.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2 * DRAIN_S)
        process.kill()


@pytest.fixture(scope="module")
def grpc_endpoint(command: subprocess.Popen[str]) -> str:
    for line in command.stdout or ():
        event = json.loads(line)
        if event["event"] == "ready":
            return str(event["grpc"])
    raise RuntimeError("orchestrator serve ended before it was ready")


@pytest.fixture
async def client(grpc_endpoint: str) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(grpc_endpoint) as client:
        yield client


async def stream(client: GrpcClient) -> AsyncIterator[Delta]:
    async with contextlib.aclosing(client.stream(SEEDED, HELD_OUT_PROMPTS[0])) as deltas:
        async for delta in deltas:
            yield delta


class Received:
    """What a client has of one stream."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.sources: list[TokenSource] = []

    def add(self, delta: Delta) -> None:
        self.token_ids += delta.token_ids
        self.text += delta.text
        self.sources += delta.sources


async def receive(client: GrpcClient, kill_at: str | None = None) -> Received:
    """Read one whole stream. The replica of deployment ``kill_at`` that serves it is killed at token 40."""
    received = Received()
    async for delta in stream(client):
        received.add(delta)
        if kill_at is not None and len(received.token_ids) >= FAULT_AT:
            await asyncio.to_thread(kill_busy, kill_at)
            kill_at = None
    return received


def kill_busy(deployment: str) -> None:
    for name, pid in replicas(APP, deployment).items():
        actor = ray.get_actor(name, namespace="serve")
        if ray.get(actor.get_num_ongoing_requests.remote()):
            return kill(pid)
    raise RuntimeError(f"no replica of {deployment} has a session")


async def all_back() -> None:
    """Wait until every deployment is healthy, and every one has as many replicas as it should have."""

    def healthy() -> bool:
        numbers = {name: len(replicas(APP, name)) for name in ("Verifier", "Drafter", "Gateway")}
        return serve.status().applications[APP].status == "RUNNING" and numbers == {
            "Verifier": NUM_VERIFIERS,
            "Drafter": 1,
            "Gateway": 1,
        }

    await asyncio.to_thread(wait_until, healthy)


@pytest.fixture(scope="module")
def unbroken(grpc_endpoint: str) -> Received:
    async def run() -> Received:
        async with GrpcClient(grpc_endpoint) as client:
            return await receive(client)

    return asyncio.run(run())


async def test_a_killed_drafter_is_not_missed_and_comes_back(client: GrpcClient, unbroken: Received) -> None:
    received = await receive(client, kill_at="Drafter")
    assert (received.token_ids, received.text) == (unbroken.token_ids, unbroken.text)
    assert TokenSource.SOLO in received.sources
    await all_back()
    assert TokenSource.ACCEPTED in (await receive(client)).sources


async def test_a_killed_verifier_leaves_no_gap_and_no_repeat(client: GrpcClient, unbroken: Received) -> None:
    received = await receive(client, kill_at="Verifier")
    assert (received.token_ids, received.text) == (unbroken.token_ids, unbroken.text)
    assert client.stats.verifier_failovers == 1
    await all_back()


async def test_a_stream_waits_for_what_replaces_the_last_verifier(client: GrpcClient, unbroken: Received) -> None:
    received = Received()
    async for delta in stream(client):
        if not received.token_ids:
            for pid in (await asyncio.to_thread(replicas, APP, "Verifier")).values():
                kill(pid)
        received.add(delta)
    assert (received.token_ids, received.text) == (unbroken.token_ids, unbroken.text)
    assert client.stats.verifier_failovers >= 1
    await all_back()


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_killed_gateway_takes_its_leases_along(client: GrpcClient, unbroken: Received, times: int) -> None:
    for _ in range(times):
        streams = [stream(client) for _ in range(2)]
        for one in streams:
            await anext(one)
        for pid in replicas(APP, "Gateway").values():
            kill(pid)
        for one in streams:
            with pytest.raises(ServiceUnavailable):
                async for _delta in one:
                    pass
        await all_back()
    await check_capacity("verifier", NUM_VERIFIERS * MAX_SESSIONS)
    await check_capacity("drafter", NUM_VERIFIERS * MAX_SESSIONS)
    assert (await receive(client)).token_ids == unbroken.token_ids


async def check_capacity(role: str, num_sessions: int) -> None:
    """All sessions can be leased, and no page is held."""
    handle = serve.get_deployment_handle(role.capitalize(), APP)
    pool = ServePool(role, handle, wait_s=20.0)
    async with dialing() as dialer:
        for lease in [await pool.lease() for _ in range(num_sessions)]:
            info = await dialer.model_info(lease, role)
            assert (info.active_sessions, info.free_kv_tokens) == (0, info.kv_tokens)
    await pool.close()


async def test_a_stop_lets_the_running_stream_end(
    client: GrpcClient, unbroken: Received, command: subprocess.Popen[str]
) -> None:
    received = Received()
    async for delta in stream(client):
        if not received.token_ids:
            command.send_signal(signal.SIGTERM)
        received.add(delta)
    assert received.token_ids == unbroken.token_ids
    assert await asyncio.to_thread(command.wait, DRAIN_S) == 0
    assert APP not in serve.status().applications
