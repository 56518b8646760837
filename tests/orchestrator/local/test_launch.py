"""What services of our own are started with."""

import asyncio
import io
import os
from typing import Any

import pytest
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Capacity, local_service, open_pair
from orchestrator.local.pair_settings import GivenSettings, PairSettings
from tests.support.fake_services import serving, unused_endpoint
from tests.support.orchestrating import run
from tests.support.patience import eventually


@pytest.mark.parametrize(
    ("cores", "models", "given", "expected"),
    [
        ({3}, {}, {}, 0),
        ({3}, {}, {"run_ahead": 2}, 2),
        ({3, 5}, {}, {}, 4),
        ({3, 5}, {}, {"run_ahead": 0}, 0),
        ({3, 5}, {}, {"device": "cuda"}, 0),
        ({3, 5}, {}, {"device": "cuda:1", "run_ahead": 2}, 2),
        ({3, 5}, {"verifier": ("elsewhere:1",)}, {"device": "cuda"}, 4),
        ({3, 5}, {"in_process": True}, {"device": "cpu"}, 0),
    ],
)
def test_a_drafter_does_not_run_ahead_where_that_delays_the_target(
    cores: set[int], models: dict[str, Any], given: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    pair, capacity = PairSettings(service=GivenSettings(given), **models), Capacity(sessions=1, tokens_a_session=64)
    assert local_service(pair, "drafter", "m", None, capacity).settings.model_dump()["run_ahead"] == expected
    assert local_service(pair, "verifier", "m", None, capacity).role == "verifier"


async def test_a_named_verifier_may_come_later() -> None:
    endpoint, said = unused_endpoint(), io.StringIO()

    async def generated() -> tuple[int, ...]:
        models, capacity = PairSettings(verifier=(endpoint,)), Capacity(1, 64)
        async with open_pair(models, with_draft=False, capacity=capacity, log=Console(file=said, width=200)) as pair:
            return (await run(pair.orchestrator, GenerationRequest((1, 2, 3), max_tokens=8, gamma=0))).token_ids

    generating = asyncio.create_task(generated())
    await eventually(lambda: f"waiting up to 600 s for the verifier at {endpoint}: " in said.getvalue())
    async with serving("verifier", port=int(endpoint.rpartition(":")[2])):
        assert len(await generating) == 8
