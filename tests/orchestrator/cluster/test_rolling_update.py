"""A gateway is replaced under running streams. The verifier is a fake in this process: their length is known."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("ray")

from ray import serve
from ray.serve.api import _run

from orchestrator.app import build
from orchestrator.decode.request import GenerationRequest
from specgate.errors import ServiceUnavailable
from specgate_lab.clients import GrpcClient
from tests.orchestrator.api.http_serving import events
from tests.orchestrator.api.queues import expected
from tests.support.fake_services import FakeService, free_port, serving
from tests.support.fakes import FakeVerifier
from tests.support.patience import eventually, wait_until
from tests.support.ray_cluster import RAY_MARKS, Cluster, replicas

pytestmark = [*RAY_MARKS, pytest.mark.slow]

APP = "rolling"
TOKEN_S = 0.1
PROMPT = (5, 17, 3)


@pytest.fixture
async def verifier(tmp_path: Path) -> AsyncIterator[FakeService]:
    slow = partial(FakeVerifier, delay_s=TOKEN_S)
    # The gateway looks into the model's folder for a tokenizer, and finds none.
    async with serving("verifier", slow, tokenizer_fingerprint={}, model=str(tmp_path)) as verifier:
        yield verifier
        await asyncio.to_thread(serve.delete, APP)


class Site:
    """One gateway over ``verifier``, and the two ways to ask it."""

    def __init__(self, verifier: FakeService, drain_s: float) -> None:
        http_port, grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http_port}"
        self.grpc = f"127.0.0.1:{grpc_port}"
        self._settings: dict[str, Any] = {
            "app_name": APP,
            "verifier": {"endpoints": [verifier.endpoint]},
            "drafter": None,
            "gateway": {
                "http": {"port": http_port},
                "grpc": {"port": grpc_port},
                "placement": {"num_cpus": 0.1},
            },
            "drain_s": drain_s,
        }

    async def deploy(self, max_tokens: int = 8, **gateway: Any) -> None:
        """Begin to serve with a default of ``max_tokens``; another one replaces the gateway."""
        settings = self._settings | {"gateway": self._settings["gateway"] | gateway}
        application = build({**settings, "defaults": {"max_tokens": max_tokens}})
        await asyncio.to_thread(_run, application, name=APP, route_prefix=None, _blocking=False)

    async def reaches(self, **states: int) -> None:
        """Return when there are so many gateways in each of these states, and none in another one."""

        def reached() -> bool:
            return serve.status().applications[APP].deployments["Gateway"].replica_states == states

        await asyncio.to_thread(wait_until, reached)

    async def http_stream(self, num_tokens: int) -> list[Any]:
        """Return the events of a stream; it may end without the last one."""
        body = {"model": "specgate", "prompt": list(PROMPT), "max_tokens": num_tokens, "return_token_ids": True}
        body |= {"stream": True, "ignore_eos": True}
        received = ""
        async with (
            httpx2.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=body) as response,
        ):
            assert response.status_code == 200
            try:
                async for text in response.aiter_text():
                    received += text
            except httpx2.HTTPError:
                pass
        return list(events(received[: received.rfind("\n\n") + 2]))

    async def grpc_stream(self, num_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a stream."""
        async with GrpcClient(self.grpc) as client:
            deltas = [delta async for delta in client.stream(request(num_tokens))]
        return tuple(token_id for delta in deltas for token_id in delta.token_ids)


def request(num_tokens: int) -> GenerationRequest:
    return GenerationRequest(PROMPT, max_tokens=num_tokens, gamma=0, ignore_eos=True)


async def running(verifier: FakeService, num_sessions: int) -> None:
    """Return once so many sessions have given a token."""
    await eventually(lambda: sum(session.num_verdicts > 0 for session in verifier.sessions) >= num_sessions)


async def deployed(verifier: FakeService, drain_s: float) -> Site:
    site = Site(verifier, drain_s)
    await site.deploy()
    await site.reaches(RUNNING=1)
    return site


def http_tokens(received: list[Any]) -> tuple[int, ...]:
    chunks = [chunk for chunk in received if chunk != "[DONE]"]
    return tuple(one for chunk in chunks for one in chunk["choices"][0].get("token_ids") or ())


async def test_running_streams_end_on_the_old_gateway_and_nobody_is_refused_meanwhile(
    ray_cluster: Cluster, verifier: FakeService
) -> None:
    drain_s = 12.0
    site = await deployed(verifier, drain_s)
    old = replicas(APP, "Gateway").keys()
    num_tokens = int(drain_s / TOKEN_S)
    http = asyncio.create_task(site.http_stream(num_tokens))
    grpc = asyncio.create_task(site.grpc_stream(num_tokens))
    await running(verifier, 2)
    await site.deploy(max_tokens=9)
    # The old one serves on until the new one runs, and both doors are open all the time.
    while not (http.done() and grpc.done()):
        assert http_tokens(await site.http_stream(4)) == expected(request(4))
        assert await site.grpc_stream(4) == expected(request(4))
    received = await http
    assert (received[-1], http_tokens(received)) == ("[DONE]", expected(request(num_tokens)))
    assert await grpc == expected(request(num_tokens))
    await site.reaches(RUNNING=1)
    assert not replicas(APP, "Gateway").keys() & old


async def test_an_http_stream_that_is_too_long_hears_why(ray_cluster: Cluster, verifier: FakeService) -> None:
    site = await deployed(verifier, drain_s=0.5)
    http = asyncio.create_task(site.http_stream(400))
    await running(verifier, 1)
    await site.deploy(max_tokens=9)
    received = await http
    assert "closed before the request was finished" in received[-1]["error"]["message"]
    assert received[-1]["error"]["last_token_index"] == len(http_tokens(received[:-1])) - 1


async def test_a_grpc_stream_that_is_too_long_hears_why(ray_cluster: Cluster, verifier: FakeService) -> None:
    site = await deployed(verifier, drain_s=0.5)
    grpc = asyncio.create_task(site.grpc_stream(400))
    await running(verifier, 1)
    await site.deploy(max_tokens=9)
    with pytest.raises(ServiceUnavailable, match=r"closed before the request was finished; the last token sent has"):
        await grpc


async def test_gateways_follow_the_requests_that_come_past_serve(ray_cluster: Cluster, verifier: FakeService) -> None:
    site = Site(verifier, drain_s=1.0)
    await site.deploy(autoscaling={"min_replicas": 1, "max_replicas": 2, "target_sessions": 1})
    await site.reaches(RUNNING=1)
    streams = [asyncio.create_task(site.http_stream(400)) for _ in range(3)]
    await running(verifier, 3)
    await site.reaches(RUNNING=2)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
