"""Schemathesis against the HTTP door: it answers as ``/openapi.json`` says, and takes nothing that it forbids."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.at_rest import check_at_rest
from tests.support.door_process import DOOR_HANG_S, MAX_GROWN_MB, DoorProcess
from tests.support.fuzz_http import VALID
from tests.support.fuzz_openapi import CHECKS, boundaries, cases, operations
from tests.support.fuzzing import Budget, FuzzCounts

pytestmark = [pytest.mark.fuzz, pytest.mark.schemathesis]

SURFACE = "/openapi.json"


class Client:
    """Sends cases on one connection, and counts what comes of them."""

    def __init__(self, url: str, counts: FuzzCounts) -> None:
        self._url = url
        self._counts = counts
        self._session = requests.Session()

    def check(self, case: Any) -> None:
        """Fail where an answer is none that the document tells of."""
        try:
            response = case.call(base_url=self._url, session=self._session, timeout=DOOR_HANG_S)
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
            assert self._session.post(self._url + path, json=body, timeout=DOOR_HANG_S).status_code == 200

    def close(self) -> None:
        """Leave."""
        self._session.close()


@pytest.fixture
def client(doors: DoorProcess, fuzz_budget: Budget) -> Iterator[Client]:
    client = Client(doors.url, fuzz_budget.of(SURFACE))
    yield client
    client.close()


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_at_each_boundary_that_the_document_has(client: Client, operation: object, fuzz_budget: Budget) -> None:
    found = list(boundaries(operation))
    assert found
    for case in found:
        fuzz_budget.of(SURFACE).cases += 1
        client.check(case)


@pytest.mark.timeout(900)
def test_no_request_is_answered_otherwise(doors: DoorProcess, client: Client, fuzz_budget: Budget) -> None:
    client.warm_up()
    before = doors.at_rest()
    fuzz_budget.fuzz(SURFACE, cases(), client.check, doors)
    client.warm_up()
    assert (fuzz_budget.of(SURFACE).grown_mb or 0.0) < MAX_GROWN_MB
    check_at_rest(doors.at_rest, before)
    assert doors.at_rest()["inside"] == 0
