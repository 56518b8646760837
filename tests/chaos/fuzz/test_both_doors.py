"""One request by both doors: the same verdict, of the same field, and the same text."""

import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.pool import StaticPool
from specgate.v1 import generation_service_pb2 as gpb
from specgate.v1 import types_pb2
from tests.orchestrator.api.http_serving import COMPLETIONS, serving_http
from tests.orchestrator.api.queues import PATIENT
from tests.support.at_rest import at_rest_with, check_at_rest
from tests.support.fuzz_requests import (
    BASE,
    FIELDS,
    GRAMMARS,
    MODEL,
    Request,
    Verdict,
    grpc_verdict,
    http_body,
    http_verdict,
    requests,
)
from tests.support.fuzzing import Budget, FuzzCounts
from tests.support.in_process import InProcess, serving
from tests.support.loop_thread import LoopThread
from tests.support.models import TOKENIZER_SIZE, Mix, write_llama

pytestmark = pytest.mark.fuzz

HANG_S = 20.0
SURFACE = "both doors"
REFUSED = "INVALID_ARGUMENT"


@dataclass(frozen=True)
class Doors:
    """One queue in front of a tiny pair, and both ways to it."""

    request_queue: RequestQueue
    services: tuple[InProcess, InProcess]
    http: http.client.HTTPConnection
    grpc: grpc.Channel


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[RequestQueue, tuple[InProcess, InProcess], str, str]]:
    target = write_llama(folder / "target", TOKENIZER_SIZE, seed=1, tokenizer=True, eos_token_id=TOKENIZER_SIZE - 1)
    draft = write_llama(folder / "draft", TOKENIZER_SIZE, seed=2, mix=Mix(1, 0.9), tokenizer=True)
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(serving("verifier", target))
        drafter = await stack.enter_async_context(serving("drafter", draft))
        pools = (StaticPool([verifier.endpoint]), StaticPool([drafter.endpoint]))
        orchestrator = await Orchestrator.connect(*pools, TextTokenizer.load(str(target)), timeouts=PATIENT)
        await stack.enter_async_context(orchestrator)
        request_queue = RequestQueue(orchestrator, GatewaySettings(), Defaults(max_tokens=8), MODEL)
        url = await stack.enter_async_context(serving_http(request_queue))
        api = GrpcApi(request_queue, Listen(), drain_s=0.0)
        await api.start()
        stack.push_async_callback(api.drain)
        yield request_queue, (verifier, drafter), url.removeprefix("http://"), api.endpoint


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


@pytest.fixture(scope="module")
def doors(loop: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with loop.entered(opened(tmp_path_factory.mktemp("pair"))) as (queue, services, host, endpoint):
        connection = http.client.HTTPConnection(host, timeout=HANG_S)
        with grpc.insecure_channel(endpoint) as channel:
            yield Doors(queue, services, connection, channel)
        connection.close()


def by_http(doors: Doors, request: Request) -> Verdict:
    body = json.dumps(http_body(request)).encode()
    doors.http.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
    response = doors.http.getresponse()
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


def check(doors: Doors, request: Request, counts: FuzzCounts) -> None:
    """Fail unless both doors accept a request, or both refuse it for one reason."""
    by_grpc, near_ties = grpc_verdict(doors.grpc, request, HANG_S)
    seen = by_http(doors, request)
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
    elif one_text(request) and not near_ties:
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
def test_a_grammar_has_one_verdict(doors: Doors, grammar: tuple[str, object], fuzz_budget: Budget) -> None:
    check(doors, BASE | {"grammar": grammar, "max_tokens": 20}, fuzz_budget.of(SURFACE))


def test_what_only_one_door_can_carry_is_refused_by_it(doors: Doors) -> None:
    for field, number in {"top_k": -2, "max_tokens": -1, "seed": 2**64, "n": -1, "gamma": 2**32}.items():
        assert by_http(doors, BASE | {field: number})[:2] == (REFUSED, field)
    for field in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        for value in (float("nan"), float("inf")):
            assert grpc_verdict(doors.grpc, BASE | {field: value}, HANG_S)[0][:2] == (REFUSED, field)


@pytest.mark.timeout(900)
def test_both_doors_say_the_same(loop: LoopThread, doors: Doors, fuzz_budget: Budget) -> None:
    counts = fuzz_budget.of(SURFACE)

    def ask_well() -> None:
        # What is kept of the last request, such as its error, is of one that is not looked for.
        for stream in (False, True):
            check(doors, BASE | {"stream": stream}, counts)

    ask_well()
    look = partial(at_rest_with, loop)
    before = look()
    fuzz_budget.fuzz(SURFACE, requests(), lambda request: check(doors, request, counts))
    ask_well()
    for service in doors.services:
        loop.run(service.settled())
    assert doors.request_queue.num_inside == doors.request_queue.num_running == 0
    check_at_rest(look, before)


def test_every_parameter_of_the_grpc_door_is_asked_of_both() -> None:
    messages = (gpb.GenerationParams.DESCRIPTOR, types_pb2.SamplingParams.DESCRIPTOR)
    told = {field.name for message in messages for field in message.fields}
    assert told - {"sampling"} == FIELDS.keys() - {"prompt", "stream"}
