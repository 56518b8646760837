"""Ray Serve hands out the sessions of one small verifier: two at a time, one more may wait."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("ray")

import httpx2
from ray import serve
from ray.serve.api import _run
from ray.serve.handle import DeploymentHandle

from orchestrator.api.http.routes import make_app
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.replicas import LogSettings, Placement
from orchestrator.api.settings.settings import Defaults, GatewaySettings, ServiceSettings
from orchestrator.cluster.pool import ServePool
from orchestrator.cluster.replica import service_application
from orchestrator.cluster.running import ANSWER_S, Replicas
from orchestrator.cluster.system_status import system_status
from orchestrator.decode.ports import Lease
from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.discovery import ask_verifier
from orchestrator.services.links import GrpcDialer
from orchestrator.services.status import Load
from specgate.errors import LeaseRefused, ServiceUnavailable, TooManySessions
from specgate.logs import REQUEST_ID
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.models import write_llama
from tests.support.orchestrating import dialing
from tests.support.patience import wait_until
from tests.support.ray_cluster import RAY_MARKS, Cluster, kill, replicas

pytestmark = RAY_MARKS

APP = "leases"
LOGS = "logs of leases"
MAX_SESSIONS, MAX_QUEUED = 2, 1
SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)
LONG_S = 20.0
SHORT_S = 0.5


@pytest.fixture(scope="module")
def verifier(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentHandle[Any]]:
    settings = ServiceSettings(
        model=str(write_llama(tmp_path_factory.mktemp("target"))),
        max_sessions=MAX_SESSIONS,
        max_queued_sessions=MAX_QUEUED,
        kv_tokens=1024,
        device="cpu",
        placement=Placement(num_cpus=0.1),
    )
    logs = LogSettings(as_json=True, folder=tmp_path_factory.getbasetemp() / LOGS)
    yield serve.run(service_application("verifier", settings, 2.0, logs), name=APP, route_prefix=None)
    serve.delete(APP)


@asynccontextmanager
async def pool_of(verifier, wait_s: float = LONG_S, rest_s: float = 0.0) -> AsyncIterator[ServePool]:
    pool = ServePool("verifier", verifier, wait_s, rest_s)
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture
async def pool(verifier) -> AsyncIterator[ServePool]:
    async with pool_of(verifier) as pool:
        yield pool


@pytest.fixture
async def dialer() -> AsyncIterator[GrpcDialer]:
    async with dialing() as dialer:
        yield dialer


async def check_capacity(verifier) -> None:
    """All of it is free: it can be filled, and no more than that; nobody holds a session or a page."""
    async with pool_of(verifier) as pool, pool_of(verifier, SHORT_S) as other:
        leases = [await pool.lease() for _ in range(MAX_SESSIONS)]
        with pytest.raises(TooManySessions):
            await other.lease()
        for lease in leases:
            pool.release(lease)
        info = await ask_verifier(pool, None)
        assert (info.active_sessions, info.free_kv_tokens) == (0, info.kv_tokens)


async def test_a_lease_opens_one_session_and_ends_with_it(verifier, pool: ServePool, dialer: GrpcDialer) -> None:
    """Whether it is given back first or never."""
    lease = await pool.lease()
    session = await dialer.open_verifier(lease, SPEC)
    with pytest.raises(LeaseRefused, match="spent"):
        await dialer.open_verifier(lease, SPEC)
    with pytest.raises(LeaseRefused, match="missing"):
        await dialer.open_verifier(Lease(lease.endpoint), SPEC)
    pool.release(lease)
    await session.close()
    await check_capacity(verifier)
    for _ in range(MAX_SESSIONS):
        session = await dialer.open_verifier(await pool.lease(), SPEC)
        await session.close()
    await check_capacity(verifier)


async def test_a_replica_logs_to_a_file_of_its_own_and_under_the_id_of_the_request(
    verifier, pool: ServePool, dialer: GrpcDialer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    token = REQUEST_ID.set("my-request")
    session = await dialer.open_verifier(await pool.lease(), SPEC)
    await session.close()
    REQUEST_ID.reset(token)
    await check_capacity(verifier)
    (name,) = replicas(APP, "Verifier")
    file = tmp_path_factory.getbasetemp() / LOGS / f"verifier-{name.rpartition('#')[2]}.log"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["process"] for line in lines} == {file.stem}
    (ended,) = (line for line in lines if line["request_id"] == "my-request")
    assert ended["message"].startswith("Verify: ")
    # What Serve says of it is there too, but no line a lease.
    assert not any(re.search("CALL .*lease", line["message"]) for line in lines)


async def test_a_lease_that_is_given_back_unused_is_void(verifier, pool: ServePool, dialer: GrpcDialer) -> None:
    lease = await pool.lease()
    pool.release(lease)
    await pool.close()
    await check_capacity(verifier)
    with pytest.raises(LeaseRefused, match="void"):
        await dialer.open_verifier(lease, SPEC)


async def test_more_than_all_sessions_queue_up_to_the_bound_and_then_are_refused(verifier, pool: ServePool) -> None:
    held = [await pool.lease() for _ in range(MAX_SESSIONS)]
    waiting = asyncio.create_task(pool.lease())
    # Serve's router takes up calls in order: the next one finds the first in the queue.
    refused = asyncio.gather(*(pool.lease() for _ in range(3)), return_exceptions=True)
    assert {type(error) for error in await refused} == {TooManySessions}
    assert not waiting.done()
    pool.release(held.pop())
    lease = await waiting
    for one in (lease, *held):
        pool.release(one)


async def test_nobody_waits_for_a_place_longer_than_allowed(verifier) -> None:
    # Long enough for a busy controller to say that replicas run: who waits for less hears of none.
    async with pool_of(verifier, ANSWER_S, rest_s=LONG_S) as full:
        held = [await full.lease() for _ in range(MAX_SESSIONS)]
        with pytest.raises(TooManySessions, match="no verifier was free within 2 s"):
            await full.lease()
        for lease in held:
            full.release(lease)
        # Nor does the next one wait at all, for a while.
        with pytest.raises(ServiceUnavailable, match="a moment ago"):
            await full.lease()


@asynccontextmanager
async def door(pool: ServePool, handle: DeploymentHandle[Any]) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield the client of a door over ``pool`` that asks ``handle`` anew each time whether it is ready."""
    async with await Orchestrator.connect(pool) as orchestrator:
        request_queue = RequestQueue(orchestrator, GatewaySettings(), Defaults(), "leases")
        app = make_app(request_queue, Replicas("verifier", handle).check)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
            yield client


async def test_a_busy_system_is_ready(verifier, pool: ServePool) -> None:
    async with door(pool, verifier) as client:
        held = [await pool.lease() for _ in range(MAX_SESSIONS)]
        assert (await client.get("/readyz")).status_code == 200
        for lease in held:
            pool.release(lease)


async def test_without_a_replica_that_runs_nothing_is_ready(verifier, pool: ServePool) -> None:
    nowhere = ServiceSettings(model="none", placement=Placement(num_cpus=0.1, resources={"nowhere": 1.0}))
    _run(service_application("verifier", nowhere, drain_s=0.0), name="nowhere", route_prefix=None, _blocking=False)
    try:
        handle = serve.get_deployment_handle("Verifier", "nowhere")
        async with door(pool, handle) as client:
            assert (await client.get("/readyz")).status_code == 503
        async with pool_of(handle, 2.0) as empty:
            with pytest.raises(ServiceUnavailable, match="no verifier was free within 2 s"):
                await empty.lease()
            # Serve still looks for a node, but what has not come within that time is not expected to.
            with pytest.raises(ServiceUnavailable, match="no verifier is there, and none is on its way"):
                await empty.lease()
        (waiting,) = (await asyncio.to_thread(system_status, "nowhere")).replicas
        assert (waiting.state, waiting.sessions) == ("STARTING", None)
    finally:
        serve.delete("nowhere")
    # Where the application is gone too, the reason is Ray's, and stays here.
    async with pool_of(handle, SHORT_S) as gone:
        with pytest.raises(ServiceUnavailable, match=r"^no verifier (is there, and none is on|was free within 0\.5 s)"):
            await gone.lease()


async def test_the_status_is_told_also_where_all_places_are_taken(
    verifier, pool: ServePool, dialer: GrpcDialer, ray_cluster: Cluster
) -> None:
    lease, other = [await pool.lease() for _ in range(MAX_SESSIONS)]
    session = await dialer.open_verifier(lease, SPEC)
    status = await asyncio.to_thread(system_status, APP)
    await session.close()
    pool.release(lease)
    pool.release(other)
    (replica,) = status.replicas
    assert (replica.role, replica.state, replica.endpoints, replica.error) == (
        "verifier",
        "RUNNING",
        (lease.endpoint,),
        "",
    )
    assert replica.sessions == Load(1, MAX_SESSIONS)
    assert replica.uptime_s is not None
    assert [node.alive for node in status.nodes] == [True]
    with pytest.raises(ServiceUnavailable, match="serves no application 'other'"):
        await asyncio.to_thread(system_status, "other")


async def test_a_cluster_is_joined_with_the_token_that_it_asks_for(verifier, ray_cluster: Cluster) -> None:
    # RAY_AUTH_MODE is not in the environment, as in a shell beside `ray start`.
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    environment.pop("RAY_AUTH_MODE", None)
    command = [sys.executable, "-m", "orchestrator.cli", "status", "--set", f"app_name={APP}", "--json"]
    asked = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, env=environment, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert [replica["state"] for replica in json.loads(asked.stdout)["replicas"]] == ["RUNNING"]


async def test_a_holder_that_is_killed_loses_its_leases(verifier, ray_cluster: Cluster) -> None:
    command = [sys.executable, "-m", "tests.orchestrator.cluster.holder", ray_cluster.address, APP, str(MAX_SESSIONS)]
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:  # noqa: ASYNC220
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "streaming\n"
        async with pool_of(verifier, SHORT_S) as other:
            with pytest.raises(TooManySessions):
                await other.lease()
        holder.send_signal(signal.SIGKILL)
    await check_capacity(verifier)


async def test_a_killed_replica_breaks_its_leases_and_is_replaced(verifier, pool: ServePool) -> None:
    request = GenerationRequest((1, 2, 3), SamplingParams(temperature=1.0), 16, seed=7, gamma=0)
    async with await Orchestrator.connect(pool) as orchestrator:
        before = [token async for delta in orchestrator.generate(request) for token in delta.token_ids]
        old = replicas(APP, "Verifier")
        for pid in old.values():
            kill(pid)
        await asyncio.to_thread(wait_until, lambda: replicas(APP, "Verifier").keys() - old)
        after = [token async for delta in orchestrator.generate(request) for token in delta.token_ids]
    assert after == before
    await check_capacity(verifier)
