"""What operators' programs ask of the HTTP API: models, versions, and whether it is ready."""

import asyncio
import time

import pytest

import specgate
from orchestrator.api.http.operations import FRESH_S, HEARD_S, Readiness
from specgate.errors import ServiceUnavailable
from tests.orchestrator.api.http_serving import (
    COMPLETIONS,
    PROMPT,
    Site,
)


async def test_models_and_version(site: Site) -> None:
    listed = (await site.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [("fake", 512)]
    assert (await site.client.get("/v1/models/fake")).json() == listed["data"][0]
    response = await site.client.get("/v1/models/some/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert (await site.client.get("/version")).json() == {"version": specgate.__version__}


async def test_ready_while_a_verifier_answers(site: Site) -> None:
    assert (await site.client.get("/readyz")).status_code == 200
    await site.room.verifier.stop()
    await asyncio.sleep(FRESH_S)
    response = await site.client.get("/readyz")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")
    assert response.headers["retry-after"] == "1"
    for path in ("/healthz", "/health"):
        assert (await site.client.get(path)).status_code == 200


async def test_many_who_ask_are_one_look_at_the_verifiers_and_none_where_one_was_just_heard(site: Site) -> None:
    num_looks, request_queue = 0, site.room.request_queue

    async def look() -> None:
        nonlocal num_looks
        num_looks += 1
        raise ServiceUnavailable("nobody there")

    readiness = Readiness(request_queue, look)
    answers = await asyncio.gather(*(readiness.check() for _ in range(50)), return_exceptions=True)
    assert ({type(answer) for answer in answers}, num_looks) == ({ServiceUnavailable}, 1)
    await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=2)
    await readiness.check()
    request_queue.heard_at = time.monotonic() - HEARD_S
    with pytest.raises(ServiceUnavailable, match="nobody there"):
        await readiness.check()


async def test_not_ready_while_draining(site: Site) -> None:
    assert await site.room.request_queue.drain(0.0)
    for response in (
        await site.client.get("/readyz"),
        await site.client.post(COMPLETIONS, json={"model": "fake", "prompt": "a"}),
    ):
        assert response.status_code == 503
        assert "draining" in response.json()["error"]["message"]
