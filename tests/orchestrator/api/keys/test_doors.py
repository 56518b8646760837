"""Keys at both doors: every route and every call that generates or tells of the model asks for one."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx2
import pytest

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.http.middleware import OPEN
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys.key_file import KeyEntry, KeyLimits, Role, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings, Listen
from specgate.errors import PermissionDenied, RateLimited, SpecgateError, Unauthenticated
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, ascii_tokenizer
from tests.orchestrator.api.queues import Room, open_room

RIGHT, REVOKED, LIMITED, SELDOM, SCRAPING = "sg-right", "sg-revoked", "sg-limited", "sg-seldom", "sg-scraping"
BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}


class Doors(NamedTuple):
    room: Room
    client: httpx2.AsyncClient
    stub: Any


@asynccontextmanager
async def doors(folder: Path) -> AsyncIterator[Doors]:
    limits = KeyLimits(max_running=1, tokens_per_minute=10)
    entries = [
        KeyEntry(name="ann", sha256=hash_of(RIGHT)),
        KeyEntry(name="bob", sha256=hash_of(REVOKED), revoked=date(2026, 1, 2)),
        KeyEntry(name="eve", sha256=hash_of(LIMITED), limits=limits),
        KeyEntry(name="dan", sha256=hash_of(SELDOM), limits=KeyLimits(requests_per_minute=2)),
        KeyEntry(name="prometheus", sha256=hash_of(SCRAPING), role=Role.METRICS),
    ]
    write_keys(folder / "keys.yaml", entries)
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        keyring = Keyring(folder / "keys.yaml", room.request_queue.metrics.requests.rejected)
        http = HttpServer(make_app(room.request_queue, keyring=keyring), HttpSettings())
        door = GrpcApi(room.request_queue, Listen(), keyring, drain_s=0.0)
        await http.start()
        await door.start()
        channel = open_channel(door.endpoint)
        try:
            async with httpx2.AsyncClient(base_url=f"http://{http.endpoint}", timeout=60) as client:
                yield Doors(room, client, GenerationServiceStub(channel))
        finally:
            await channel.close()
            await door.drain()
            await http.drain(0.0)


def shown(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


async def generated(stub: Any, key: str | None, method: str = "Generate", max_tokens: int = 4) -> int | SpecgateError:
    """Return how many tokens a call of the gRPC door brought, or why none."""
    params = pb.GenerationParams(max_tokens=max_tokens, ignore_eos=True)
    metadata = [(name.lower(), value) for name, value in shown(key).items()]
    token_ids = pb.TokenIds(ids=PROMPT)
    try:
        if method == "Generate":
            answer = await stub.Generate(pb.GenerateRequest(token_ids=token_ids, params=params), metadata=metadata)
            return len(answer.token_ids)
        request = pb.GenerateStreamRequest(token_ids=token_ids, params=params)
        return sum([len(delta.token_ids) async for delta in stub.GenerateStream(request, metadata=metadata)])
    except grpc.RpcError as error:
        return from_rpc_error(error)


async def test_every_route_but_the_open_ones_asks_for_a_key(tmp_path: Path) -> None:
    async with doors(tmp_path) as (_, client, _):
        described = (await client.get("/openapi.json")).json()["paths"]
        routes = [(method, path) for path, methods in described.items() for method in methods]
        assert len(routes) > 10
        for method, path in [*routes, ("get", "/such"), ("post", "/metrics")]:
            given = path.replace("{name}", "fake")
            for key, status, code in ((None, 401, "invalid_api_key"), ("sg-wrong", 401, "invalid_api_key")):
                answer = await client.request(method, given, headers=shown(key), json=BODY)
                assert answer.status_code == (200 if given in OPEN else status), (method, path)
                if given not in OPEN:
                    assert answer.json()["error"]["code"] == code
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert answer.headers["x-request-id"]
            answer = await client.request(method, given, headers=shown(REVOKED), json=BODY)
            assert answer.status_code == (200 if given in OPEN else 403)
            good, other = (SCRAPING, RIGHT) if given.startswith("/metrics") else (RIGHT, SCRAPING)
            answer = await client.request(method, given, headers=shown(good), json=BODY)
            assert answer.status_code not in (401, 403)
            answer = await client.request(method, given, headers=shown(other), json=BODY)
            assert answer.status_code == (200 if given in OPEN else 403)


async def test_a_key_is_told_which_role_is_asked_for(tmp_path: Path) -> None:
    async with doors(tmp_path) as (_, client, _):
        # A router takes a line's end behind a path for none.
        for path in ("/metrics", "/metrics%0A", "/metrics/targets"):
            answer = await client.get(path, headers=shown(RIGHT))
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
            assert answer.json()["error"]["message"] == "the key ann has the role client; this needs the role metrics"
        assert (await client.get("/metrics/targets", headers=shown(SCRAPING))).json() == []
        assert (await client.get("/v1/models", headers=shown(SCRAPING))).status_code == 403


async def test_the_right_key_gets_its_answer_and_leaves_a_line_of_audit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with doors(tmp_path) as (_, client, stub):
        with caplog.at_level(logging.INFO, "specgate.audit"):
            answer = await client.post(COMPLETIONS, json=BODY | {"n": 2}, headers=shown(RIGHT))
            assert answer.status_code == 200
            assert await generated(stub, RIGHT) == await generated(stub, RIGHT, "GenerateStream") == 4
    lines = [record.getMessage() for record in caplog.records if record.name == "specgate.audit"]
    assert lines == [
        "key ann: 2 requests, 6 prompt tokens, 8 tokens: OK",
        *["key ann: 1 requests, 3 prompt tokens, 4 tokens: OK"] * 2,
    ]
    assert RIGHT not in caplog.text


async def test_calls_without_a_good_key_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    refused = {None: Unauthenticated, "x": Unauthenticated, REVOKED: PermissionDenied, SCRAPING: PermissionDenied}
    async with doors(tmp_path) as (room, _, stub):
        for key, kind in refused.items():
            for method in ("Generate", "GenerateStream"):
                assert isinstance(await generated(stub, key, method), kind)
        assert room.verifier.sessions == []


async def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    async with doors(tmp_path) as (_, client, stub):
        for key in (None, "sg-wrong", REVOKED):
            await client.post(COMPLETIONS, json=BODY, headers=shown(key))
            await generated(stub, key)
        found = (await client.get("/metrics", headers=shown(SCRAPING))).text
    assert 'requests_rejected_total{model_name="fake",reason="UNAUTHENTICATED"} 4.0' in found
    assert 'requests_rejected_total{model_name="fake",reason="PERMISSION_DENIED"} 2.0' in found


async def test_one_key_that_has_used_its_minute_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specgate.audit")
    async with doors(tmp_path) as (_, client, stub):
        assert await generated(stub, LIMITED, max_tokens=30) == 30
        answer = await client.post(COMPLETIONS, json=BODY, headers=shown(LIMITED))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 60 < int(answer.headers["retry-after"]) < 200
        refused = await generated(stub, LIMITED)
        assert isinstance(refused, RateLimited)
        assert refused.retry_after_s == pytest.approx(int(answer.headers["retry-after"]), abs=2)
        assert await generated(stub, RIGHT) == 4
        found = (await client.get("/metrics", headers=shown(SCRAPING))).text
    assert 'requests_rejected_total{model_name="fake",reason="RATE_LIMITED"} 2.0' in found
    refusals = [line for line in caplog.messages if "refused: R" in line]
    assert refusals == ["key eve: refused: RATE_LIMITED"] * 2


async def test_what_takes_no_turn_is_a_request_of_the_minute_too(tmp_path: Path) -> None:
    async with doors(tmp_path) as (_, client, _):
        for path, body, status in (
            ("/tokenize", {"prompt": "a"}, 200),
            ("/detokenize", {"tokens": [5]}, 200),
            ("/tokenize", {"prompt": "a"}, 429),
        ):
            assert (await client.post(path, json=body, headers=shown(SELDOM))).status_code == status


async def test_two_keys_share_nothing_that_is_cached(tmp_path: Path) -> None:
    async with doors(tmp_path) as (room, client, _):
        for key in (RIGHT, LIMITED):
            await client.post(COMPLETIONS, json=BODY, headers=shown(key))
    assert len({session.spec.cache_salt for session in room.verifier.sessions}) == 2
