"""Sessions whose clients say nothing: both services, over real gRPC."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from orchestrator.decode.ports import Lease
from specgate.errors import InvalidArgument, SessionIdle, SpecgateError
from specgate.rpc.channel import open_channel
from specgate.rpc.convert_session import session_spec_to_pb
from specgate.rpc.status import from_rpc_error
from specgate.service import silence
from specgate.service.config import config_of
from specgate.service.replica import Replica
from specgate.service.silence import SilenceLimits, ended_by_silence
from specgate.types import DraftRequest, Proposal, SamplingParams, SessionSpec, Verification, VerifyRequest
from specgate.v1 import types_pb2
from specgate.v1.drafter_service_pb2 import DraftRequest as DraftMessage
from specgate.v1.drafter_service_pb2_grpc import DrafterServiceStub
from specgate.v1.verifier_service_pb2 import VerifyRequest as VerifyMessage
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.models import quiet, write_llama
from tests.support.orchestrating import dialing

SPEC = SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 16, vocab_size=64)
IDLE_S = 0.3
PATIENT_S = 2.0
"""Of a service whose client says that it is there, as often as it can on a busy machine."""
ROLES = ("drafter", "verifier")


@asynccontextmanager
async def serving(role: str, folder: Path, **settings: float) -> AsyncIterator[Replica]:
    """A service with one place: a drafter without a model, or a small verifier."""
    kind = {"method": "suffix"} if role == "drafter" else {"model": str(write_llama(folder)), "device": "cpu"}
    config = config_of(role, **kind, max_sessions=1, kv_tokens=1024, drain_s=1.0, **settings)
    replica = Replica(role, config)
    await replica.start(quiet)
    try:
        yield replica
    finally:
        await replica.drain()


@asynccontextmanager
async def calling(replica: Replica, role: str) -> AsyncIterator[Any]:
    """What begins a session's stream, as a client of another make would."""
    async with open_channel(replica.endpoint) as channel:
        yield DrafterServiceStub(channel).Draft if role == "drafter" else VerifierServiceStub(channel).Verify


def opening(role: str) -> Any:
    message = DraftMessage if role == "drafter" else VerifyMessage
    return message(open=session_spec_to_pb(SPEC))


async def end_of(call: Any) -> SpecgateError:
    """Read what must be the end of the answers."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("role", ROLES)
async def test_a_session_that_nobody_talks_to_gives_up_its_place(role: str, tmp_path: Path) -> None:
    async with (
        serving(role, tmp_path, session_idle_s=IDLE_S) as replica,
        dialing() as dialer,
        calling(replica, role) as begin,
    ):
        call = begin()
        await call.write(opening(role))
        answer = await call.read()
        assert (answer.opened, answer.session_idle_ms) == (True, 1000 * IDLE_S)
        error = await end_of(call)
        assert isinstance(error, SessionIdle)
        assert "nothing came for 0.3 s" in str(error)
        info = await dialer.model_info(Lease(replica.endpoint), role)
        assert (info.active_sessions, info.free_kv_tokens) == (0, info.kv_tokens)


@pytest.mark.parametrize("role", ROLES)
async def test_a_request_that_is_paused_on_purpose_is_not_idle(role: str, tmp_path: Path) -> None:
    """And is served when it goes on."""
    async with serving(role, tmp_path, session_idle_s=PATIENT_S) as replica, dialing() as dialer:
        if role == "drafter":
            drafter = await dialer.open_drafter(Lease(replica.endpoint), SPEC)
            await asyncio.sleep(1.5 * PATIENT_S)
            await drafter.draft(DraftRequest(0, 3, (), gamma=2))
            await drafter.close()
        else:
            verifier = await dialer.open_verifier(Lease(replica.endpoint), SPEC)
            await asyncio.sleep(1.5 * PATIENT_S)
            assert [verdict.last async for verdict in verifier.verify(VerifyRequest(0, 3, Proposal()))] == [True]
            await verifier.close()


async def test_a_keep_alive_opens_no_session(tmp_path: Path) -> None:
    async with serving("drafter", tmp_path) as replica, calling(replica, "drafter") as begin:
        call = begin()
        await call.write(DraftMessage(keep_alive=types_pb2.KeepAlive()))
        assert isinstance(await end_of(call), InvalidArgument)


async def test_while_the_service_works_its_client_is_not_idle() -> None:
    limits = SilenceLimits(0.1, 0.1)
    async with ended_by_silence(limits, "somebody") as silence:
        with silence.working():
            # A keep_alive that comes meanwhile starts no clock.
            silence.restart()
            await asyncio.sleep(0.3)
    with pytest.raises(SessionIdle, match=r"nothing came for 0\.1 s"):
        await worked_and_waits(limits)


async def worked_and_waits(limits: SilenceLimits) -> None:
    async with ended_by_silence(limits, "somebody") as silence:
        with silence.working():
            pass
        await asyncio.sleep(30.0)


async def test_a_time_that_is_up_elsewhere_is_not_silence() -> None:
    with pytest.raises(TimeoutError):
        async with ended_by_silence(SilenceLimits(), "somebody"):
            raise TimeoutError


async def test_many_silent_clients_are_one_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "_report", silence._Report())

    async def silent(peer: int) -> None:
        with suppress(SessionIdle):
            async with ended_by_silence(SilenceLimits(0.01), f"client {peer}"):
                await asyncio.sleep(30.0)

    await asyncio.gather(*map(silent, range(1000)))
    await asyncio.sleep(2 * silence.REPORT_S)
    lines = [record.getMessage() for record in caplog.records]
    told = [int(found[1]) + 1 if (found := re.search(r"and (\d+) more", line)) else 1 for line in lines]
    assert sum(told) == 1000
    assert len(lines) <= 4
    assert lines[0].startswith("ended a session of client ")
