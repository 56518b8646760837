"""The boards, the rules and the alerts of deploy/observability, asked of a real Prometheus at a live system."""

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from specgate_lab.served_child import MODEL_NAME, served, settings_for
from specgate_lab.soak.replicas import replicas_under
from tests.support.patience import patience

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy" / "observability"
BOARDS = ("serving", "speculation")
EMPTY_IN_HEALTH = ("specgate_fallbacks_total", "specgate_requests_rejected_total")
"""Counters whose labels come with the first fault."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus"
)


def queries(board: str) -> Iterator[str]:
    for panel in json.loads((FOLDER / f"grafana-{board}.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_the_boards_are_what_the_script_writes(name: str) -> None:
    found = importlib.util.spec_from_file_location("boards", ROOT / "scripts" / "boards.py")
    assert found is not None
    assert found.loader is not None
    boards = importlib.util.module_from_spec(found)
    found.loader.exec_module(boards)
    assert json.loads((FOLDER / f"grafana-{name}.json").read_text()) == boards.board(name, *boards.BOARDS[name])


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", "deploy/observability/prometheus.yml"],
        ["test", "rules", "tests/deploy/alerts_test.yml"],
    ],
)
def test_promtool_finds_no_fault(words: Sequence[str]) -> None:
    done = subprocess.run(["promtool", *words], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real one, on a port of its own."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(self, query: str) -> list[Any]:
        """Return the vector that a query answers; it must be answered."""
        answer = (await self._client.get("/api/v1/query", params={"query": query})).json()
        assert answer["status"] == "success", (query, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    async def until(self, query: str) -> list[Any]:
        """Return what a query answers once it answers something."""
        async with patience():
            while not (found := await self.ask(query)):  # noqa: ASYNC110 - it tells nobody when it has scraped
                await asyncio.sleep(0.5)
        return found


@asynccontextmanager
async def watching(url: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with our files, but faster: a second where they say five, and alerts that wait for a second."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (discovery,) = config["scrape_configs"][0]["http_sd_configs"]
    discovery |= {"url": f"{url}/metrics/targets", "refresh_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "rules.yml", folder)
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        rule["for"] = "1s"
    (folder / "alerts.yml").write_text(yaml.safe_dump(alerts))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        address = ""
        async with patience():
            while "Listening on" not in address:
                address = (await process.stderr.readline()).decode()
        draining = asyncio.create_task(process.stderr.read())
        endpoint = address.split("address=")[-1].split()[0]
        async with httpx2.AsyncClient(base_url=f"http://{endpoint}", timeout=10) as client:
            yield Prometheus(client)
        draining.cancel()
    finally:
        process.terminate()
        await process.wait()


async def ask_for_texts(url: str, until: asyncio.Event) -> None:
    """Ask for one after the other, by a gate that asks the drafter in every round: only so is its loss met."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        while not until.is_set():
            body = {"model": MODEL_NAME, "prompt": "def fib(n):", "max_tokens": 48, "temperature": 1.0, "gate": "none"}
            (await client.post("/v1/completions", json=body)).raise_for_status()


@needs_prometheus
async def test_prometheus_sees_a_live_system_and_a_killed_drafter(tmp_path: Path) -> None:
    enough = asyncio.Event()
    async with served(settings_for()) as system, watching(url := f"http://{system.http}", tmp_path) as prometheus:
        asking = asyncio.create_task(ask_for_texts(url, enough))
        for role in ("gateway", "verifier", "drafter"):
            await prometheus.until(f'up{{role="{role}"}} == 1')
        await prometheus.until("specgate:acceptance_rate > 0")
        await prometheus.until("specgate:tokens_per_second > 0")
        unanswered = [
            query
            for board in BOARDS
            for query in queries(board)
            if not (await prometheus.ask(query) or any(name in query for name in EMPTY_IN_HEALTH))
        ]
        assert unanswered == []
        assert await prometheus.ask('ALERTS{alertname="SpecgateDrafterDown"}') == []
        (drafter,) = (one for one in replicas_under(system.pid) if one.role == "drafter")
        os.kill(drafter.pid, signal.SIGKILL)
        await prometheus.until('ALERTS{alertname="SpecgateDrafterDown", alertstate="firing"}')
        await prometheus.until('specgate_fallbacks_total{service="drafter"} > 0')
        # The texts went on, and so do the queries that were empty before.
        assert not asking.done()
        enough.set()
        await asking
        for query in (one for board in BOARDS for one in queries(board) if EMPTY_IN_HEALTH[0] in one):
            await prometheus.until(query)
