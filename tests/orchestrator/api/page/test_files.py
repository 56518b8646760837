"""The page's files as any client sees them, where there is no browser to look at them."""

from pathlib import Path

import httpx2
import pytest
import yaml

from orchestrator.api.http.page import FOLDER, PAGE_PATHS
from orchestrator.api.http.routes import make_app
from orchestrator.api.keys.key_file import hash_of, new_key
from orchestrator.api.keys.keyring import Keyring
from tests.orchestrator.api.page.serving import open_door
from tests.orchestrator.api.queues import open_room


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [{"name": "visitor", "sha256": hash_of(new_key())}]}))
    return Keyring(file)


async def test_the_files_need_no_key_and_all_else_does(keyring: Keyring) -> None:
    async with open_door(keyring=keyring) as (_, url), httpx2.AsyncClient(base_url=url) as client:
        for path, file in PAGE_PATHS.items():
            answer = await client.get(path)
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-cache"
        for path in ("/page/", "/page/none.js", "/page/%2e%2e/__init__.py", "/page/index.html", "/v1/models"):
            assert (await client.get(path)).status_code == 401


async def test_the_page_is_left_out() -> None:
    async with open_room() as room:
        app = make_app(room.request_queue, has_page=False)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
            assert [(await client.get(path)).status_code for path in PAGE_PATHS] == [404] * len(PAGE_PATHS)
            assert (await client.get("/health")).status_code == 200


def test_the_page_names_each_of_its_files() -> None:
    """What it names and lacks, and what it has and never names, is a mistake."""
    texts = "".join(file.read_text("utf-8") for file in FOLDER.iterdir() if file.suffix in (".html", ".js"))
    assert [file.name for path, file in PAGE_PATHS.items() if path != "/" and f"/{file.name}" not in texts] == []
