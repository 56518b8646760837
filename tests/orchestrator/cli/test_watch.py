"""``orchestrator status --watch``: figures between two looks at the metrics of a served system."""

import asyncio
import io
from collections import Counter

import pytest
from rich.console import Console

from orchestrator.api.http.operations import Targets
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.cli.watch import Look, look, shown, watch
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


def test_nothing_that_happens_is_no_division_by_zero() -> None:
    at_rest = Look(10.0, Counter(num_requests_running=0))
    assert "none" in text_of(at_rest, at_rest)


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
            await asyncio.to_thread(watch, console, f"http://{http.endpoint}", 0.01, 2)
            assert console.file.getvalue().count("tokens/s") == 2  # type: ignore[attr-defined]
        finally:
            await http.drain(0.0)


def test_a_gateway_that_is_not_there_is_told(orchestrator: Cli) -> None:
    nowhere = unused_endpoint()
    with pytest.raises(ServiceUnavailable):
        look(f"http://{nowhere}")
    code, _, told = orchestrator("status", "--watch", "--url", f"http://{nowhere}", "--times", "1")
    assert code == 1
    assert told.startswith(f"orchestrator: http://{nowhere}/metrics/targets does not answer")
