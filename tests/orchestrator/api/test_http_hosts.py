"""Which ``Host`` a door without keys answers: a page whose name leads to this machine gets nothing."""

from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from orchestrator.api.http.middleware import HostMiddleware
from orchestrator.api.http.operations import no_targets
from orchestrator.api.http.routes import make_app, make_operations_app
from orchestrator.api.http.server import App, HttpServer
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings
from tests.orchestrator.api.http_serving import ascii_tokenizer
from tests.orchestrator.api.queues import open_room

ELSEWHERE = "page.example:8000"
HOSTS = ("gateway", "*.svc.cluster.local")


async def asked(app: App, host: str, path: str = "/v1/models", key: str = "") -> httpx2.Response:
    server = HttpServer(app, HttpSettings())
    await server.start()
    headers = {"Host": host} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        async with httpx2.AsyncClient(base_url=f"http://{server.endpoint}", timeout=60) as client:
            return await client.get(path, headers=headers)
    finally:
        await server.drain(0.0)


@pytest.mark.parametrize("path", ["/v1/models", "/", "/healthz", "/metrics"])
async def test_a_name_of_elsewhere_is_refused_at_every_path_with_the_setting_that_permits_it(path: str) -> None:
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        answer = await asked(make_app(room.request_queue, hosts=HOSTS), ELSEWHERE, path)
    assert answer.status_code == 421
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "unknown_host")
    assert f"Host header {ELSEWHERE!r}" in error["message"]
    assert "gateway.http.hosts" in error["message"]
    assert "access-control-allow-origin" not in answer.headers


async def test_the_port_of_operations_has_no_keys_and_looks_too() -> None:
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        app = make_operations_app(room.request_queue, None, no_targets, HOSTS)
        assert (await asked(app, ELSEWHERE, "/metrics")).status_code == 421
        assert (await asked(app, "gateway:9000", "/metrics")).status_code == 200


async def test_where_a_key_is_asked_for_any_name_will_do(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of("sg-right"))])
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        app = make_app(room.request_queue, keyring=Keyring(tmp_path / "keys.yaml"))
        assert (await asked(app, ELSEWHERE, key="sg-right")).status_code == 200
        assert (await asked(app, ELSEWHERE)).status_code == 401


async def passes(host: str | None, hosts: Sequence[str] = HOSTS) -> bool:
    reached: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)

    async def nothing(*_: object) -> None:
        pass

    headers = [] if host is None else [(b"host", host.encode("latin-1"))]
    await HostMiddleware(app, hosts)({"type": "http", "headers": headers}, nothing, nothing)
    return bool(reached)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "localhost",
        "LocalHost.:8000",
        "page.localhost:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "10.0.0.7",
        "[fd00::7]:8000",
        "Gateway:8000",
        "specgate.prod.svc.cluster.local",
    ],
)
async def test_loopback_addresses_and_names_that_are_listed_pass(host: str | None) -> None:
    assert await passes(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "page.example",
        "notlocalhost",
        "localhost.page.example",
        "gateway.page.example",
        "10.0.0.7.page.example",
        "[::1",
        "gateway2",
    ],
)
async def test_names_that_are_like_ours_do_not(host: str) -> None:
    assert not await passes(host)


async def test_a_star_permits_all() -> None:
    assert await passes("page.example", ["*"])
