"""Any body, under any header: no 5xx, no hang, and the door goes on to serve."""

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, Site, open_site
from tests.support.fuzz_http import CASES, VALID, HttpCase
from tests.support.fuzzing import Budget, corpus, raw
from tests.support.loop_thread import LoopThread

pytestmark = pytest.mark.fuzz

HANG_S = 20.0
SURFACE = "HTTP bodies"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with LoopThread() as loop, loop.entered(open_site()) as site:
        yield site


def answered(site: Site, case: HttpCase) -> int:
    """Return the status of a case whose answer is read to its end; 500 where a stream ends with an error of ours."""
    host = site.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=HANG_S)
    try:
        connection.request(case.method, case.path, case.body, dict(case.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    return 500 if b'"type":"server_error"' in body.replace(b" ", b"") else response.status


def check(site: Site, case: HttpCase, budget: Budget) -> None:
    counts = budget.of(SURFACE)
    try:
        status = answered(site, case)
    except TimeoutError:
        counts.hangs += 1
        raise
    except (OSError, http.client.HTTPException):
        counts.crashes += 1
        raise
    counts.done += status == 200
    counts.http_5xx += status >= 500
    assert status < 500


@pytest.mark.parametrize("one", corpus("http_body"), ids=lambda one: one["broke"])
def test_what_once_broke_the_door(site: Site, one: dict[str, str], fuzz_budget: Budget) -> None:
    check(site, HttpCase(one["path"], raw(one["http_body"])), fuzz_budget)


@pytest.mark.timeout(900)
def test_no_body_is_a_fault_of_ours(site: Site, fuzz_budget: Budget) -> None:
    fuzz_budget.fuzz(SURFACE, CASES, lambda case: check(site, case, fuzz_budget))
    assert answered(site, HttpCase(COMPLETIONS, json.dumps(VALID[COMPLETIONS] | {"prompt": PROMPT}).encode())) == 200
