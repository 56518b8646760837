"""Any body, under any header: no 5xx, no hang, and the door goes on to serve."""

import http.client
import json

import pytest

from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT
from tests.support.door_process import DOOR_HANG_S, MAX_GROWN_MB, DoorProcess
from tests.support.fuzz_http import CASES, VALID, HttpCase
from tests.support.fuzzing import Budget, corpus, raw

pytestmark = pytest.mark.fuzz

SURFACE = "HTTP bodies"
LARGEST = VALID[COMPLETIONS] | {"prompt": [5] * 1000, "n": 9, "prompt_logprobs": 20}


def answered(doors: DoorProcess, case: HttpCase) -> int:
    """Return the status of a case whose answer is read to its end; 500 where a stream ends with an error of ours."""
    host = doors.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=DOOR_HANG_S)
    try:
        connection.request(case.method, case.path, case.body, dict(case.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    return 500 if b'"type":"server_error"' in body.replace(b" ", b"") else response.status


def check(doors: DoorProcess, case: HttpCase, budget: Budget) -> None:
    counts = budget.of(SURFACE)
    try:
        status = answered(doors, case)
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
def test_what_once_broke_the_door(doors: DoorProcess, one: dict[str, str], fuzz_budget: Budget) -> None:
    check(doors, HttpCase(one["path"], raw(one["http_body"])), fuzz_budget)


@pytest.mark.timeout(900)
def test_no_body_is_a_fault_of_ours(doors: DoorProcess, fuzz_budget: Budget) -> None:
    # What the largest answer takes the allocator keeps: that is no leak.
    assert answered(doors, HttpCase(COMPLETIONS, json.dumps(LARGEST).encode())) == 200
    fuzz_budget.fuzz(SURFACE, CASES, lambda case: check(doors, case, fuzz_budget), doors)
    assert (fuzz_budget.of(SURFACE).grown_mb or 0.0) < MAX_GROWN_MB
    assert answered(doors, HttpCase(COMPLETIONS, json.dumps(VALID[COMPLETIONS] | {"prompt": PROMPT}).encode())) == 200
