"""A drafter without a model on a Ray cluster: it copies, takes no card, and the text is the target's."""

from collections.abc import Iterator
from dataclasses import replace
from socket import create_server

import pytest

pytest.importorskip("ray")

from ray import serve

from orchestrator.app import build
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import DraftMethod, SamplingParams
from specgate_lab.clients import GrpcClient
from tests.support.models import write_llama
from tests.support.ray_cluster import RAY_MARKS, Cluster

pytestmark = RAY_MARKS

APP = "sources"
REQUEST = GenerationRequest((5, 17, 3, 5, 17, 3), SamplingParams(temperature=0.0), 64, gamma=0, ignore_eos=True)
"""A small random model soon repeats itself."""


@pytest.fixture(scope="module")
def endpoint(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with create_server(("127.0.0.1", 0)) as free:
        grpc_port = free.getsockname()[1]
    small = {"max_sessions": 2, "kv_tokens": 2048, "placement": {"num_cpus": 0.1}}
    application = build(
        {
            "app_name": APP,
            "verifier": {**small, "model": str(write_llama(tmp_path_factory.mktemp("target"))), "device": "cpu"},
            "drafter": {**small, "method": "suffix"},
            "gateway": {"grpc": {"port": grpc_port}, "placement": {"num_cpus": 0.1}},
        }
    )
    serve.run(application, name=APP, route_prefix=None)
    yield f"127.0.0.1:{grpc_port}"
    serve.delete(APP)


async def token_ids(client: GrpcClient, request: GenerationRequest) -> list[int]:
    return [one async for delta in client.stream(request) for one in delta.token_ids]


async def test_a_copying_drafter_is_deployed_like_any_other(endpoint: str) -> None:
    async with GrpcClient(endpoint) as client:
        alone = await token_ids(client, REQUEST)
        for gamma, gate in ((4, Gate.NONE), (None, Gate.AUTO)):
            assert await token_ids(client, replace(REQUEST, gamma=gamma, gate=gate)) == alone
            # Under auto a copy must be told within a forward, and this model's takes less than a message.
            assert client.stats.accepted_by[DraftMethod.SUFFIX] > 0 or gate is Gate.AUTO
            assert client.stats.drafter_failures == 0
