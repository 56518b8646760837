"""500 sessions opened and dropped at every stage: all pages free, no session counted, no task left."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from drafter_svc.service import add_servicer as add_drafter
from specgate.rpc.channel import open_channel
from specgate.rpc.convert import verify_round_to_pb
from specgate.rpc.convert_session import session_spec_to_pb
from specgate.rpc.server import Server, ServerOptions
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.service.model import ServedModel
from specgate.types import ALWAYS_SOLO, MAX_GAMMA, Proposal, SamplingParams, SessionSpec, Verification, VerifyRequest
from specgate.v1 import drafter_service_pb2 as dpb
from specgate.v1 import verifier_service_pb2 as vpb
from specgate.v1.drafter_service_pb2_grpc import DrafterServiceStub
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.models import write_llama
from verifier_svc.service import add_servicer as add_verifier

NUM_SESSIONS = 500
VOCAB_SIZE = 64


@dataclass
class InProcess:
    """A real server and engine in this process, so that pages and tasks can be counted."""

    server: Server
    model: ServedModel

    @property
    def pages_in_use(self) -> int:
        pool = self.model.engine.runner.pool
        return pool.num_pages - pool.num_free


async def serve(role: str, folder: Path, add_servicer: Callable[[Any, Any], None]) -> InProcess:
    loaded = load(str(folder), torch.device("cpu"), torch.float32, lambda *_: None)
    engine = Engine(prepare(loaded, 65_536, 1024, lambda *_: None))
    engine.start()
    model = ServedModel(role, loaded, engine, max_sessions=48, run_ahead_rows=96 if role == "drafter" else 0)
    server = Server(f"specgate.v1.{role.capitalize()}Service", ServerOptions(drain_s=1.0))
    await server.start()
    add_servicer(model, server.handlers)
    await server.set_ready(lambda: engine.heartbeat_age_s)
    return InProcess(server, model)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[tuple[InProcess, InProcess]]:
    write_llama(tmp_path, vocab_size=VOCAB_SIZE, seed=1)
    both = await serve("drafter", tmp_path, add_drafter), await serve("verifier", tmp_path, add_verifier)
    yield both
    for service in both:
        await service.server.drain()
        service.model.engine.stop()


def spec(prompt_length: int) -> Any:
    sampling = SamplingParams(temperature=1.0)
    prompt = tuple(i % VOCAB_SIZE for i in range(prompt_length))
    return session_spec_to_pb(SessionSpec(prompt, sampling, 1, Verification.SHARED_NOISE, 200))


def verify_round(position: int, num_tokens: int) -> Any:
    return verify_round_to_pb(VerifyRequest(1, position, Proposal(), ALWAYS_SOLO, num_tokens))


def draft_round(position: int, num_tokens: int) -> Any:
    return dpb.DraftRound(round=1, position=position, gamma=min(num_tokens, MAX_GAMMA))


IN_A_RUN = ("in a round", "in a solo run", "half-closed in a solo run")
STAGES = ("before open", "in prefill", "behind an answer", *IN_A_RUN)


async def drop(call: Any, message: Any, make_round: Callable[[int, int], Any], stage: str) -> None:
    """Bring one session of either service as far as ``stage``, and leave it."""
    length = 300 if stage == "in prefill" else 8
    if stage != "before open":
        await call.write(message(open=spec(length)))
        await call.read()
    if stage in IN_A_RUN:
        await call.write(message(round=make_round(length, 150)))
    if stage == "in a solo run" and make_round is verify_round:
        await call.read()
    if stage.startswith("half-closed"):
        await call.done_writing()
        await asyncio.sleep(0.01)
    if stage == "behind an answer":
        await call.write(message(round=make_round(length, 4)))
        await call.read()
        await asyncio.sleep(0.01)
    call.cancel()


async def drop_verify(stub: VerifierServiceStub, stage: str) -> None:
    await unless_full(lambda: drop(stub.Verify(), vpb.VerifyRequest, verify_round, stage))


async def drop_draft(stub: DrafterServiceStub, stage: str) -> None:
    await unless_full(lambda: drop(stub.Draft(), dpb.DraftRequest, draft_round, stage))


async def unless_full(drop: Callable[[], Awaitable[None]]) -> None:
    """Run one drop. A slow machine frees pages later than we come back: then wait, as a client is told to."""
    while True:
        try:
            return await drop()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.1)


async def settled(services: tuple[InProcess, InProcess], num_tasks: int) -> None:
    """Wait until nothing is left; the test's own timeout is the limit."""

    def busy() -> bool:
        in_use = any(s.pages_in_use or s.model.admission.num_sessions or s.server.active_calls for s in services)
        return in_use or len(asyncio.all_tasks()) > num_tasks

    while busy():  # noqa: ASYNC110 - there is nothing that could tell us
        await asyncio.sleep(0.02)


@pytest.mark.timeout(120)
async def test_dropped_sessions_leave_nothing_behind(services: tuple[InProcess, InProcess]) -> None:
    rng = random.Random(0)
    drafter, verifier = services
    async with open_channel(drafter.server.endpoint) as dc, open_channel(verifier.server.endpoint) as vc:
        draft_stub, verify_stub = DrafterServiceStub(dc), VerifierServiceStub(vc)
        num_tasks = len(asyncio.all_tasks()) + 2  # the channels' own pollers
        slots = asyncio.Semaphore(20)

        async def one(stage: str) -> None:
            async with slots:
                await asyncio.gather(drop_verify(verify_stub, stage), drop_draft(draft_stub, stage))

        await asyncio.gather(*(one(rng.choice(STAGES)) for _ in range(NUM_SESSIONS)))
        await settled(services, num_tasks)
    for service in services:
        service.model.engine.runner.pool.check_integrity()
        assert service.pages_in_use == 0
        assert service.model.admission.num_sessions == 0
        assert service.model.engine.num_jobs == 0


async def test_a_session_opened_after_the_storm_is_served(services: tuple[InProcess, InProcess]) -> None:
    _, verifier = services
    async with open_channel(verifier.server.endpoint) as channel:
        for _ in range(verifier.model.admission.max_sessions + 5):
            await drop_verify(VerifierServiceStub(channel), "in a round")
        await settled(services, 1_000)
        call = VerifierServiceStub(channel).Verify()
        await call.write(vpb.VerifyRequest(open=spec(8)))
        assert (await call.read()).opened
        await call.write(vpb.VerifyRequest(round=verify_round(8, 150)))
        verdicts = [await call.read() for _ in range(151)]
        assert verdicts[-1].last
        assert len({v.round for v in verdicts}) == 1
        call.cancel()
