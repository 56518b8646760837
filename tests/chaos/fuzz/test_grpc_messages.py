"""Any message of any type, to all three services: no INTERNAL, no UNKNOWN, no hang, no page left."""

from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from tests.support.door_process import MAX_GROWN_MB, DoorProcess
from tests.support.fuzz_grpc import VALID, GrpcCase, call, cases_of, judge
from tests.support.fuzzing import Budget, corpus, raw
from tests.support.in_process import InProcess, serving
from tests.support.loop_thread import LoopThread
from tests.support.models import write_llama

pytestmark = pytest.mark.fuzz

Channels = dict[str, grpc.Channel]


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


@pytest.fixture(scope="module")
def services(loop: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, InProcess]]:
    folder = write_llama(tmp_path_factory.mktemp("model"), seed=1)
    with (
        loop.entered(serving("drafter", folder)) as drafter,
        loop.entered(serving("verifier", folder)) as verifier,
    ):
        yield {"DrafterService": drafter, "VerifierService": verifier}


@pytest.fixture(scope="module")
def channels(services: dict[str, InProcess], doors: DoorProcess) -> Iterator[Channels]:
    endpoints = {name: service.endpoint for name, service in services.items()} | {"GenerationService": doors.endpoint}
    with ExitStack() as stack:
        # Not grpc.aio: there a write into a stream that has just ended is an INTERNAL of the client's own.
        yield {name: stack.enter_context(grpc.insecure_channel(endpoint)) for name, endpoint in endpoints.items()}


def status(channels: Channels, case: GrpcCase) -> grpc.StatusCode:
    return call(channels[case.method.partition("/")[0]], case)


@pytest.mark.parametrize("method", VALID)
def test_what_is_changed_is_valid_before(channels: Channels, method: str) -> None:
    sent = tuple(message.SerializeToString() for message in VALID[method][:2])
    assert status(channels, GrpcCase(method, sent)) is grpc.StatusCode.OK


@pytest.mark.parametrize("one", corpus("grpc"), ids=lambda one: one["broke"])
def test_what_once_broke_a_service(channels: Channels, one: dict[str, list[str]], fuzz_budget: Budget) -> None:
    case = GrpcCase(str(one["method"]), tuple(map(raw, one["grpc"])))
    judge(status(channels, case), fuzz_budget.of(case.method))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", VALID)
def test_no_message_is_a_fault_of_ours(
    loop: LoopThread,
    channels: Channels,
    services: dict[str, InProcess],
    doors: DoorProcess,
    method: str,
    fuzz_budget: Budget,
) -> None:
    counts = fuzz_budget.of(method)
    at_doors = method.startswith("GenerationService")
    server = doors if at_doors else None
    fuzz_budget.fuzz(method, cases_of(method), lambda case: judge(status(channels, case), counts), server)
    assert not at_doors or (counts.grown_mb or 0.0) < MAX_GROWN_MB
    # Not all was refused because nobody is served any more.
    test_what_is_changed_is_valid_before(channels, method)
    for service in services.values():
        loop.run(service.settled())
