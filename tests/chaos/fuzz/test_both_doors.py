"""One request by both doors: the same verdict, of the same field, and the same text."""

import http.client
import json
from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest

from specgate.v1 import generation_service_pb2 as gpb
from specgate.v1 import types_pb2
from tests.orchestrator.api.http_serving import COMPLETIONS
from tests.support.at_rest import check_at_rest
from tests.support.door_process import DOOR_HANG_S, DoorProcess
from tests.support.fuzz_requests import (
    BASE,
    FIELDS,
    GRAMMARS,
    Request,
    Verdict,
    grpc_verdict,
    http_body,
    http_verdict,
    requests,
)
from tests.support.fuzzing import Budget, FuzzCounts

pytestmark = pytest.mark.fuzz

SURFACE = "both doors"
REFUSED = "INVALID_ARGUMENT"


class Both(NamedTuple):
    """A way to each door."""

    http: http.client.HTTPConnection
    grpc: grpc.Channel


@pytest.fixture(scope="module")
def both(doors: DoorProcess) -> Iterator[Both]:
    connection = http.client.HTTPConnection(doors.url.removeprefix("http://"), timeout=DOOR_HANG_S)
    with grpc.insecure_channel(doors.endpoint) as channel:
        yield Both(connection, channel)
    connection.close()


def by_http(both: Both, request: Request) -> Verdict:
    body = json.dumps(http_body(request)).encode()
    both.http.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
    response = both.http.getresponse()
    return http_verdict(response.status, response.read())


def differs_on_purpose(request: Request) -> bool:
    """Return whether one door has what the other has not.

    HTTP tells a prompt's log-probabilities in whole answers alone, as vLLM does. It asks about a prompt alone with
    ``max_tokens: 0``, as OpenAI's clients do; gRPC, where that would be a request for nothing, with 1.
    """
    asks_of_prompt = "prompt_logprobs" in request
    return asks_of_prompt and (bool(request.get("stream")) or request["max_tokens"] == 0)


def one_text(request: Request) -> bool:
    """Return whether a seed means one text: in rejection sampling it depends on the rounds, ``auto``'s on time."""
    return request.get("verification") != "rejection" or request.get("temperature") == 0.0 or request.get("gamma") == 0


def check(both: Both, request: Request, counts: FuzzCounts) -> None:
    """Fail unless both doors accept a request, or both refuse it for one reason."""
    by_grpc = grpc_verdict(both.grpc, request, DOOR_HANG_S)
    seen = by_http(both, request)
    counts.done += by_grpc.outcome == "OK"
    counts.internal += by_grpc.outcome in ("INTERNAL", "UNKNOWN")
    counts.http_5xx += seen.outcome == "server_error"
    counts.hangs += by_grpc.outcome == "DEADLINE_EXCEEDED"
    assert {by_grpc.outcome, seen.outcome} <= {"OK", REFUSED}
    if differs_on_purpose(request):
        return
    assert seen.outcome == by_grpc.outcome
    if seen.outcome == REFUSED:
        check_field(seen.field, by_grpc.field, request)
    elif one_text(request):
        assert seen.texts == by_grpc.texts


def check_field(by_http: str | None, by_grpc: str | None, request: Request) -> None:
    """Fail unless both name one field. Where several are at fault they need not look at the same one first."""
    assert by_http is not None
    assert by_grpc is not None
    changed = {name for name in request if name not in BASE or request[name] != BASE[name]} - {"stream"}
    # A prompt that is too long for its answer is an answer that is too long for its prompt.
    if len(changed) == 1 and {by_http, by_grpc} != {"prompt", "max_tokens"}:
        assert by_http == by_grpc


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_a_grammar_has_one_verdict(both: Both, grammar: tuple[str, object], fuzz_budget: Budget) -> None:
    check(both, BASE | {"grammar": grammar, "max_tokens": 20}, fuzz_budget.of(SURFACE))


def test_what_only_one_door_can_carry_is_refused_by_it(both: Both) -> None:
    for field, number in {"top_k": -2, "max_tokens": -1, "seed": 2**64, "n": -1, "gamma": 2**32}.items():
        assert by_http(both, BASE | {field: number})[:2] == (REFUSED, field)
    for field in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        for value in (float("nan"), float("inf")):
            assert grpc_verdict(both.grpc, BASE | {field: value}, DOOR_HANG_S)[:2] == (REFUSED, field)


@pytest.mark.timeout(900)
def test_both_doors_say_the_same(doors: DoorProcess, both: Both, fuzz_budget: Budget) -> None:
    counts = fuzz_budget.of(SURFACE)

    def ask_well() -> None:
        # What is kept of the last request, such as its error, is of one that is not looked for.
        for stream in (False, True):
            check(both, BASE | {"stream": stream}, counts)

    ask_well()
    before = doors.at_rest()
    fuzz_budget.fuzz(SURFACE, requests(), lambda request: check(both, request, counts), doors)
    ask_well()
    assert doors.at_rest()["inside"] == 0
    check_at_rest(doors.at_rest, before)


def test_every_parameter_of_the_grpc_door_is_asked_of_both() -> None:
    messages = (gpb.GenerationParams.DESCRIPTOR, types_pb2.SamplingParams.DESCRIPTOR)
    told = {field.name for message in messages for field in message.fields}
    assert told - {"sampling"} == FIELDS.keys() - {"prompt", "stream"}
