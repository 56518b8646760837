"""``orchestrator status --watch``: figures between two looks at the metrics of a served system."""

import asyncio
import io
from collections import Counter

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse
from rich.console import Console
from starlette.types import Receive, Scope, Send

from orchestrator.api.http.operations import Targets
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.cli.answering import KEY_VARIABLE
from orchestrator.cli.watch import Look, look, shown, watch_replicas
from specgate.errors import ServiceUnavailable
from tests.orchestrator.api.http_serving import ascii_tokenizer
from tests.orchestrator.api.queues import open_room
from tests.support.fake_services import unused_endpoint
from tests.support.orchestrating import Cli


def text_of(*looks: Look) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(shown(*looks))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_rates_are_between_two_looks() -> None:
    names = ("generation_tokens_total", "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")
    before = Look(10.0, Counter(dict.fromkeys(names, 1000)), Counter(solo=7))
    counts = dict(zip(names, (1050, 1030, 1040), strict=True)) | {"spec_decode_num_drafts_total": 10}
    now = Look(12.0, Counter(counts), Counter(solo=17, accepted=30), [("drafter", "d1", {})])
    told = text_of(before, now)
    for figure in ("25.0", "75%", "4.00", "accepted 75%  solo 25%", "does not answer"):
        assert figure in told


def test_a_gateway_that_is_new_has_no_negative_rate() -> None:
    before = Look(10.0, Counter(generation_tokens_total=1000), Counter(solo=900, accepted=100))
    told = text_of(before, Look(12.0, Counter(generation_tokens_total=10), Counter(solo=10)))
    assert " 0.0" in told
    assert "-" not in told
    assert "none" in told


@pytest.mark.parametrize("answer", ["# HELP such as a service tells", "<html>", '{"a": 1}', '[{"labels": {}}]'])
async def test_what_is_no_gateway_is_told(answer: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(answer)(scope, receive, send)

    http = HttpServer(app, HttpSettings())
    await http.start()
    try:
        with pytest.raises(ServiceUnavailable, match="/metrics/targets tells no replicas"):
            await asyncio.to_thread(look, f"http://{http.endpoint}/")
    finally:
        await http.drain(0.0)


async def test_it_finds_all_replicas_through_the_gateway() -> None:
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        targets: list[dict[str, object]] = []

        async def listed() -> list[dict[str, object]]:
            return targets

        found: Targets = listed
        http = HttpServer(make_app(room.request_queue, targets=found), HttpSettings())
        await http.start()
        lost = unused_endpoint()
        for role, endpoint in (("gateway", http.endpoint), ("drafter", lost)):
            targets.append({"targets": [endpoint], "labels": {"role": role, "replica": f"{role}-1"}})
        try:
            first = await asyncio.to_thread(look, f"http://{http.endpoint}")
            assert [name for _, name, _ in first.replicas] == ["gateway-1", "drafter-1"]
            assert first.replicas[1][2] == {}
            assert first.sums["max_requests_running"] == 16
            console = Console(file=io.StringIO(), width=120)
            await asyncio.to_thread(watch_replicas, console, f"http://{http.endpoint}", 0.01, 2)
            assert console.file.getvalue().count("tokens/s") == 2  # type: ignore[attr-defined]
        finally:
            await http.drain(0.0)


async def test_services_are_not_shown_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bytes | None]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        shown.append((scope["path"], dict(scope["headers"]).get(b"authorization")))
        targets = [
            {"targets": [http.endpoint], "labels": {"role": role, "replica": role}} for role in ("verifier", "gateway")
        ]
        answer = JSONResponse(targets) if scope["path"].endswith("targets") else Response("")
        await answer(scope, receive, send)

    http = HttpServer(app, HttpSettings())
    await http.start()
    monkeypatch.setenv(KEY_VARIABLE, "sg-mine")
    try:
        port = http.endpoint.rpartition(":")[2]
        await asyncio.to_thread(look, f"http://localhost:{port}")
    finally:
        await http.drain(0.0)
    key = b"Bearer sg-mine"
    assert shown == [("/metrics/targets", key), ("/metrics", None), ("/metrics", key)]


async def test_what_speaks_no_http_is_told() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x00\x12\x04")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ServiceUnavailable, match="speaks no HTTP"):
            await asyncio.to_thread(look, f"http://127.0.0.1:{port}")


def test_a_gateway_that_is_not_there_is_told(orchestrator: Cli) -> None:
    nowhere = unused_endpoint()
    with pytest.raises(ServiceUnavailable):
        look(f"http://{nowhere}")
    code, _, told = orchestrator("status", "--watch", "--url", f"http://{nowhere}")
    assert code == 1
    assert told.startswith(f"orchestrator: http://{nowhere}/metrics/targets does not answer")
