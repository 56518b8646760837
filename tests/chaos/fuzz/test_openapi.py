"""Schemathesis against the HTTP door: it answers as ``/openapi.json`` says, and takes nothing that it forbids."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.orchestrator.api.http_serving import Site, open_site
from tests.support.at_rest import at_rest, check_at_rest
from tests.support.fuzz_http import VALID
from tests.support.fuzzing import Budget, FuzzCounts
from tests.support.loop_thread import LoopThread

pytest.importorskip("schemathesis", reason="scripts/chaos fetches it")

from tests.support.fuzz_openapi import CHECKS, boundaries, cases, operations

pytestmark = pytest.mark.fuzz

HANG_S = 20.0
SURFACE = "/openapi.json"


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


@pytest.fixture(scope="module")
def site(loop: LoopThread) -> Iterator[Site]:
    with loop.entered(open_site()) as site:
        yield site


class Client:
    """Sends cases on one connection, and counts what comes of them."""

    def __init__(self, url: str, counts: FuzzCounts) -> None:
        self._url = url
        self._counts = counts
        self._session = requests.Session()

    def check(self, case: Any) -> None:
        """Fail where an answer is none that the document tells of."""
        try:
            response = case.call(base_url=self._url, session=self._session, timeout=HANG_S)
        except requests.Timeout:
            self._counts.hangs += 1
            raise
        except requests.ConnectionError:
            self._counts.crashes += 1
            raise
        failed_within = b'"type":"server_error"' in response.content.replace(b" ", b"")
        self._counts.done += response.status_code == 200
        self._counts.http_5xx += response.status_code >= 500 or failed_within
        case.validate_response(response, checks=CHECKS)
        assert not failed_within

    def warm_up(self) -> None:
        """Ask once for what is made at the first use and kept."""
        for path, body in VALID.items():
            assert self._session.post(self._url + path, json=body, timeout=HANG_S).status_code == 200

    def close(self) -> None:
        """Leave."""
        self._session.close()


@pytest.fixture
def client(site: Site, fuzz_budget: Budget) -> Iterator[Client]:
    client = Client(site.url, fuzz_budget.of(SURFACE))
    yield client
    client.close()


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_at_each_boundary_that_the_document_has(client: Client, operation: object, fuzz_budget: Budget) -> None:
    for case in boundaries(operation):
        fuzz_budget.of(SURFACE).cases += 1
        client.check(case)


@pytest.mark.timeout(900)
def test_no_request_is_answered_otherwise(loop: LoopThread, site: Site, client: Client, fuzz_budget: Budget) -> None:
    client.warm_up()
    loop.run(site.room.freed())
    before = at_rest(loop)
    fuzz_budget.fuzz(SURFACE, cases(), client.check)
    client.warm_up()
    loop.run(site.room.freed())
    assert site.room.request_queue.num_inside == site.room.request_queue.num_running == 0
    site.room.forget()
    check_at_rest(loop, before)
