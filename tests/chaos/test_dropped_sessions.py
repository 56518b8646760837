"""500 sessions opened and dropped at every stage: all pages free, no session counted, no task left."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.convert import verify_round_to_pb
from specgate.types import ALWAYS_SOLO, MAX_GAMMA, Proposal, SamplingParams, VerifyRequest
from specgate.v1 import drafter_service_pb2 as dpb
from specgate.v1 import verifier_service_pb2 as vpb
from tests.support.fuzz_grpc import spec_to_pb
from tests.support.in_process import STUBS, InProcess, serving
from tests.support.models import write_llama
from tests.support.patience import eventually

NUM_SESSIONS = 500
VOCAB_SIZE = 64
MESSAGES: dict[str, Any] = {"drafter": dpb.DraftRequest, "verifier": vpb.VerifyRequest}


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[dict[str, InProcess]]:
    folder = write_llama(tmp_path, vocab_size=VOCAB_SIZE, seed=1)
    async with serving("drafter", folder) as drafter, serving("verifier", folder) as verifier:
        yield {"drafter": drafter, "verifier": verifier}


def spec(prompt_length: int) -> Any:
    prompt = tuple(i % VOCAB_SIZE for i in range(prompt_length))
    return spec_to_pb(prompt_token_ids=prompt, sampling=SamplingParams(temperature=1.0), seed=1, max_tokens=200)


def round_of(role: str, position: int, num_tokens: int) -> Any:
    if role == "drafter":
        return dpb.DraftRound(round=1, position=position, gamma=min(num_tokens, MAX_GAMMA))
    return verify_round_to_pb(VerifyRequest(1, position, Proposal(), ALWAYS_SOLO, num_tokens))


IN_A_RUN = ("in a round", "in a solo run", "half-closed in a solo run")
STAGES = ("before open", "in prefill", "behind an answer", *IN_A_RUN)


async def drop(role: str, call: Any, stage: str) -> None:
    """Bring one session of either service as far as ``stage``, and leave it."""
    message, length = MESSAGES[role], 300 if stage == "in prefill" else 8
    if stage != "before open":
        await call.write(message(open=spec(length)))
        await call.read()
    if stage in IN_A_RUN:
        await call.write(message(round=round_of(role, length, 150)))
    if stage == "in a solo run" and role == "verifier":
        await call.read()
    if stage.startswith("half-closed"):
        await call.done_writing()
        await asyncio.sleep(0.01)
    if stage == "behind an answer":
        await call.write(message(round=round_of(role, length, 4)))
        await call.read()
        await asyncio.sleep(0.01)
    call.cancel()


async def dropped(role: str, method: Any, stage: str) -> None:
    """Drop one session. A slow machine frees pages later than we come back: then wait, as a client is told to."""
    while True:
        try:
            return await drop(role, method(), stage)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.1)


async def test_dropped_sessions_leave_nothing_behind(services: dict[str, InProcess]) -> None:
    drafter, verifier = services["drafter"], services["verifier"]
    async with open_channel(drafter.endpoint) as dc, open_channel(verifier.endpoint) as vc:
        methods = {"drafter": STUBS["drafter"](dc).Draft, "verifier": STUBS["verifier"](vc).Verify}
        num_tasks = len(asyncio.all_tasks()) + 2  # the channels' own pollers
        rng, slots = random.Random(0), asyncio.Semaphore(20)

        async def one(stage: str) -> None:
            async with slots:
                await asyncio.gather(*(dropped(role, method, stage) for role, method in methods.items()))

        await asyncio.gather(*(one(rng.choice(STAGES)) for _ in range(NUM_SESSIONS)))
        await drafter.settled()
        await verifier.settled()
        await eventually(lambda: len(asyncio.all_tasks()) <= num_tasks)
        # A session that is opened after the storm is served.
        call = methods["verifier"]()
        await call.write(vpb.VerifyRequest(open=spec(8)))
        assert (await call.read()).opened
        await call.write(vpb.VerifyRequest(round=round_of("verifier", 8, 150)))
        verdicts = [await call.read() for _ in range(151)]
        assert verdicts[-1].last
        assert len({verdict.round for verdict in verdicts}) == 1
        call.cancel()
