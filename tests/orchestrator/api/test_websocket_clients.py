"""clients/websocket, in Node and in Chromium, whose pages have an origin."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.http.upgrade import STREAM
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings
from tests.orchestrator.api.client_programs import ROOT, run
from tests.orchestrator.api.http_serving import Telling, ascii_tokenizer, said_to
from tests.orchestrator.api.page.conftest import FLAGS
from tests.orchestrator.api.queues import Hanging, Room, open_room
from tests.support.loop_thread import LoopThread
from tests.support.programs import program

if TYPE_CHECKING:
    from playwright.sync_api import Page

CLIENT = ROOT / "clients" / "websocket"
PROMPT, KEY = "Hello", "sg-right"


@asynccontextmanager
async def open_door(folder: Path, *hosts: str, kind: Any = Telling) -> AsyncIterator[tuple[Room, str]]:
    """A server that asks for a key, and pages of ``hosts`` may ask. Yield it and its WebSocket's URL."""
    write_keys(folder / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of(KEY))])
    async with open_room(kind, ascii_tokenizer()) as room:
        app = make_app(room.request_queue, keyring=Keyring(folder / "keys.yaml"), hosts=hosts)
        server = HttpServer(app, HttpSettings())
        await server.start()
        try:
            yield room, f"ws://{server.endpoint}{STREAM}"
        finally:
            await server.drain(0.0)


async def test_node(tmp_path: Path) -> None:
    command = (program("node", "nodejs"), "--experimental-websocket", str(CLIENT / "ask.mjs"))
    async with open_door(tmp_path) as (room, url):
        code, out, _ = await run(*command, url, PROMPT, SPECGATE_KEY=KEY)
        assert (code, out) == (0, said_to(PROMPT, 64) + "\n")
        code, out, err = await run(*command, url, PROMPT)
        assert (code, out) == (1, "")
        assert "closed: 1006" in err
        await room.freed()


@pytest.fixture
def page() -> Iterator[str]:
    """The URL of the client's page, at a server of its own: its origin is none of ours."""
    handler = partial(SimpleHTTPRequestHandler, directory=CLIENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/index.html"
        server.shutdown()


def test_a_page_asks_if_its_host_is_listed_and_frees_what_it_leaves(page: str, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright, LoopThread() as loop:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)

        def shows(text: str, url: str, key: str = KEY) -> "Page":
            """Ask on a new tab, and wait until it shows ``text``."""
            tab = browser.new_page()
            tab.goto(page)
            for name, value in {"url": url, "key": key, "prompt": PROMPT}.items():
                tab.fill(f"[name={name}]", value)
            tab.click("button")
            tab.wait_for_function("text => document.querySelector('pre').textContent.includes(text)", arg=text)
            return tab

        with loop.entered(open_door(tmp_path, "localhost")) as (_, url):
            shows(PROMPT + said_to(PROMPT, 64), url)
            shows("closed: 1006", url, "sg-wrong")
        with loop.entered(open_door(tmp_path, "localhost", kind=Hanging)) as (room, url):
            shows(PROMPT + said_to(PROMPT, 1), url).close()
            loop.run(room.freed())
        with loop.entered(open_door(tmp_path)) as (_, url):
            shows("closed: 1006", url)
        browser.close()
