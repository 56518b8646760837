"""Faults inside a service: its engine's thread, one session's numbers, memory, and peers that do as they like."""

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specgate.rpc.channel import open_channel
from specgate.rpc.convert import verify_round_to_pb
from specgate.types import ALWAYS_SOLO, Proposal, SamplingParams, VerifyRequest
from specgate.v1 import verifier_service_pb2 as vpb
from specgate_lab.soak.processes import num_descriptors, rss_mb
from tests.support.chaos_table import ChaosTable
from tests.support.fuzz_grpc import spec_to_pb
from tests.support.in_process import STUBS, InProcess, serving
from tests.support.models import write_llama
from tests.support.session_machine import Open, finished, verify

pytestmark = pytest.mark.chaos

NUM_REQUESTS = 10_000
AT_A_TIME = 32
SPEC = spec_to_pb(sampling=SamplingParams(temperature=1.0), seed=5, max_tokens=30)
Stub = Any


@pytest.fixture
async def verifier(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with serving("verifier", write_llama(tmp_path, seed=1)) as service:
        yield service


@pytest.fixture
async def stub(verifier: InProcess) -> AsyncIterator[Stub]:
    async with open_channel(verifier.endpoint) as channel:
        yield STUBS["verifier"](channel)


async def opened(stub: Stub, spec: Any = SPEC) -> Open:
    session = Open("verifier", stub.Verify(), len(spec.prompt_token_ids))
    await session.send(open=spec)
    assert (await session.read()).opened
    return session


def left(service: InProcess) -> str:
    return f"{service.pages_in_use} pages"


Forward = Callable[[list[Any]], list[Any]]


def break_forward(service: InProcess, fault: Callable[[Forward, list[Any]], list[Any]]) -> None:
    """Put ``fault`` in the place of a runner's ``forward``, which it is given with each batch."""
    service.runner.forward = partial(fault, service.runner.forward)


def of_other(batch: list[Any]) -> list[bool]:
    """Say which rows are of the session that is to break: it has the longer prompt."""
    return [len(sequence.token_ids) > 100 for sequence, *_ in batch]


BROKEN = spec_to_pb(prompt_token_ids=tuple(index % 64 for index in range(120)), seed=6, max_tokens=30)


def no_numbers(forward: Forward, batch: list[Any]) -> list[Any]:
    return [
        rows * float("nan") if broken else rows for rows, broken in zip(forward(batch), of_other(batch), strict=True)
    ]


def no_memory(forward: Forward, batch: list[Any]) -> list[Any]:
    if any(of_other(batch)):
        raise MemoryError
    return forward(batch)


def no_thread(forward: Forward, batch: list[Any]) -> list[Any]:
    raise SystemExit


@pytest.mark.parametrize("fault", [no_numbers, no_memory])
async def test_one_bad_session_fails_alone(
    verifier: InProcess, stub: Stub, chaos: ChaosTable, fault: Callable[..., Any]
) -> None:
    told = {no_numbers: "NaN in the logits of one of two sessions", no_memory: "MemoryError in one of two sessions"}
    with chaos.row(told[fault]) as row:
        alone = await finished(await opened(stub))
        good, bad = await opened(stub), await opened(stub, BROKEN)
        await verify(good)
        await verify(bad)
        break_forward(verifier, fault)
        await bad.send(round=verify_round_to_pb(VerifyRequest(2, bad.position, Proposal(), 0.0, 0)))
        code = await bad.end()
        row.text_equal = await finished(good) == alone
        await verifier.settled()
        row.seen, row.left = f"{code.name} for it alone", left(verifier)
        assert row.text_equal
        assert code is (grpc.StatusCode.INTERNAL if fault is no_numbers else grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_a_dead_engine_is_not_serving(
    verifier: InProcess, stub: Stub, chaos: ChaosTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chaos.row("the engine's thread ends, its process lives on") as row:
        exited = threading.Event()
        # A real one leaves here; this one shows what is seen until then.
        monkeypatch.setattr(os, "_exit", lambda code: exited.set())
        session = await opened(stub)
        break_forward(verifier, no_thread)
        start_s = time.monotonic()
        await session.send(round=verify_round_to_pb(VerifyRequest(1, session.position, Proposal(), 0.0, 0)))
        code = await session.end()
        async with open_channel(verifier.endpoint) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            told = (await health.Check(health_pb2.HealthCheckRequest())).status
        row.gap_s = time.monotonic() - start_s
        row.seen = f"{code.name}, then NOT_SERVING, and the process asks to leave"
        assert code is grpc.StatusCode.INTERNAL
        assert told == health_pb2.HealthCheckResponse.NOT_SERVING
        assert exited.is_set()
        assert row.gap_s < 5.0


async def _fails(stub: Stub, stage: int) -> None:
    """One request that comes to nothing, at one of five stages."""
    call = stub.Verify()
    with suppress(grpc.aio.AioRpcError):
        if stage == 0:
            call.cancel()
            return
        spec = spec_to_pb(seed=stage)
        if stage == 1:
            spec.max_tokens = 0
        await call.write(vpb.VerifyRequest(open=spec))
        await call.read()
        if stage >= 3:
            position = 3 if stage == 4 else 7
            await call.write(
                vpb.VerifyRequest(round=verify_round_to_pb(VerifyRequest(1, position, Proposal(), ALWAYS_SOLO, 20)))
            )
            await call.read()
    call.cancel()


@pytest.mark.timeout(600)
async def test_ten_thousand_failures_leave_nothing(verifier: InProcess, stub: Stub, chaos: ChaosTable) -> None:
    with chaos.row(f"{NUM_REQUESTS} requests that fail or are cancelled, at five stages") as row:
        rng, places = random.Random(0), asyncio.Semaphore(AT_A_TIME)
        alone = await finished(await opened(stub))

        async def one() -> None:
            async with places:
                await _fails(stub, rng.randrange(5))

        async def many(number: int) -> tuple[int, int, float]:
            await asyncio.gather(*(one() for _ in range(number)))
            await verifier.settled()
            await asyncio.sleep(0.5)
            return len(asyncio.all_tasks()), num_descriptors(os.getpid()), rss_mb(os.getpid())

        tasks, descriptors, memory_mb = await many(NUM_REQUESTS // 10)
        tasks_after, descriptors_after, memory_after_mb = await many(NUM_REQUESTS)
        row.left = left(verifier)
        row.grown_mb = memory_after_mb - memory_mb
        row.seen = f"tasks {tasks} before, {tasks_after} after; descriptors {descriptors}, {descriptors_after}"
        assert tasks_after <= tasks
        assert descriptors_after <= descriptors + 4
        assert row.grown_mb < 50
        row.text_equal = await finished(await opened(stub)) == alone
        assert row.text_equal


async def test_a_newer_client_is_understood(verifier: InProcess, stub: Stub, chaos: ChaosTable) -> None:
    with chaos.row("messages with fields that this version does not know"):
        alone = await finished(await opened(stub))
        newer = type(SPEC)()
        # Field 2047, three bytes.
        newer.MergeFromString(SPEC.SerializeToString() + b"\xfa\x7f\x03abc")
        assert await finished(await opened(stub, newer)) == alone


async def test_silent_peers_lose_their_places(tmp_path: Path, chaos: ChaosTable) -> None:
    with chaos.row("4 idle sessions and 200 silent streams on a service of 4 places") as row:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(
                serving("verifier", write_llama(tmp_path, seed=1), max_sessions=4)
            )
            stub = STUBS["verifier"](await stack.enter_async_context(open_channel(service.endpoint)))
            silent = [stub.Verify() for _ in range(200)]
            idle = [await opened(stub) for _ in range(4)]
            start_s = time.monotonic()
            freed_s = await _served_after(stub, start_s)
            codes = {(await one.end()).name for one in idle}
            async with asyncio.timeout(max(1.0, start_s + 150.0 - time.monotonic())):
                closed = {(await one.code()).name for one in silent}
            await service.settled()
            row.left = left(service)
        row.seen = f"places free after {freed_s:.0f} s; sessions told {codes}, streams {closed}"
        assert codes == closed == {"DEADLINE_EXCEEDED"}


async def _served_after(stub: Stub, start_s: float) -> float:
    """Return how many seconds it took until a stranger got a place. Raises TimeoutError after two minutes."""
    async with asyncio.timeout(120):
        while True:
            with suppress(grpc.aio.AioRpcError):
                session = await opened(stub)
                session.call.cancel()
                return time.monotonic() - start_s
            await asyncio.sleep(0.5)
