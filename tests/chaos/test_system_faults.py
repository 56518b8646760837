"""The served system: replicas killed under a stream, more clients than it takes, and its Ray lost."""

import asyncio
import os
import signal
import time
from collections import Counter

import grpc
import pytest

pytest.importorskip("ray")

from specgate.errors import ResourceExhausted, ServiceUnavailable
from specgate.rpc.convert_session import sampling_params_to_pb
from specgate.rpc.endpoint import is_loopback
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from specgate_lab.soak.processes import descendants, listeners
from tests.support.chaos_http import send_and_leave
from tests.support.chaos_streams import FAULT_AT, NUM_TOKENS, SEEDED, watch, watch_all
from tests.support.chaos_system import System, serving_system
from tests.support.chaos_table import ChaosTable

pytestmark = pytest.mark.chaos

CAPACITY = 18
"""Requests that run and wait in the one gateway."""


async def test_slow_readers(system: System, chaos: ChaosTable) -> None:
    with chaos.row("gRPC: 16 readers of a message every 3 s, then a request of two tokens") as row:
        before = system.memory_mb()
        readers = [asyncio.create_task(_read_slowly(system)) for _ in range(16)]
        await asyncio.sleep(5.0)
        start_s = time.monotonic()
        seen = await watch(system.stream(max_tokens=2))
        row.gap_s = time.monotonic() - start_s
        codes = Counter(await asyncio.gather(*readers))
        row.seen = f"two tokens after {row.gap_s:.1f} s; the readers: {dict(codes)}"
        await asyncio.to_thread(system.check_left, row, before)
        assert seen.error is None
        # Without a limit each of them reads for twenty minutes.
        assert codes == {"UNAVAILABLE": 16}


async def _read_slowly(system: System) -> str:
    """Read one message every 3 s, for 75 s; return the status that ended it."""
    small = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
    async with grpc.aio.insecure_channel(system.grpc, small) as channel:
        params = pb.GenerationParams(
            sampling=sampling_params_to_pb(SEEDED.sampling), max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=20
        )
        call = GenerationServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(text="def f():", params=params))
        try:
            for _ in range(25):
                if await call.read() is grpc.aio.EOF:
                    return "whole stream"
                await asyncio.sleep(3.0)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        call.cancel()
        return "still reading"


async def test_overload(system: System, chaos: ChaosTable) -> None:
    with chaos.row(f"gRPC: {10 * CAPACITY} streams at once, ten times what runs and waits") as row:
        before = system.memory_mb()
        alone = await watch(system.stream(max_tokens=20))
        all_seen = await watch_all([system.stream(max_tokens=20) for _ in range(10 * CAPACITY)])
        served = [one for one in all_seen if one.error is None]
        refused = [one.error for one in all_seen if one.error is not None]
        row.seen = (
            f"{len(served)} served, {len(refused)} refused: {dict(Counter(type(one).__name__ for one in refused))}"
        )
        row.gap_s = max(one.gap_s for one in served)
        row.text_equal = all(one.token_ids == alone.token_ids for one in served)
        await asyncio.to_thread(system.check_left, row, before)
        assert len(served) >= CAPACITY // 2
        assert refused
        assert all(isinstance(one, ResourceExhausted) and one.retry_after_s for one in refused)
        assert row.text_equal


async def test_half_of_the_clients_leave(system: System, chaos: ChaosTable) -> None:
    with chaos.row("gRPC: 9 of 18 clients leave in mid-answer") as row:
        before = system.memory_mb()

        async def leave() -> None:
            deltas = system.stream()
            await anext(deltas)
            await deltas.aclose()  # type: ignore[attr-defined]

        *stayed, _ = await asyncio.gather(
            *(watch(system.stream(max_tokens=60)) for _ in range(9)), *(leave() for _ in range(9))
        )
        seen = [one for one in stayed if one is not None]
        row.text_equal = all(one.token_ids == system.text[:60] for one in seen)
        row.seen = f"{len(seen)} others have their text"
        await asyncio.to_thread(system.check_left, row, before)
        assert row.text_equal


@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_a_killed_replica_is_not_missed(system: System, chaos: ChaosTable, role: str) -> None:
    with chaos.row(f"served: the {role} SIGKILL under a stream, Ray brings another") as row:
        faults = {FAULT_AT: lambda: system.kill_busy(role)}
        seen = await system.disturbed(row, faults, num_verifiers=1)
        assert len(seen.token_ids) == NUM_TOKENS


async def test_a_request_while_no_verifier_is_there(system: System, chaos: ChaosTable) -> None:
    with chaos.row("served: a new request while the only verifier is being replaced") as row:
        before = system.memory_mb()
        system.kill_all("verifier")
        start_s = time.monotonic()
        seen = await watch(system.stream())
        row.seen, row.gap_s = seen.told, time.monotonic() - start_s
        system.wait_back(1)
        system.check_left(row, before)
        row.compare(seen.token_ids, system.text)
        assert len(seen.token_ids) == NUM_TOKENS


async def test_a_killed_gateway(system: System, chaos: ChaosTable) -> None:
    with chaos.row("served: the gateway SIGKILL under a stream") as row:
        seen = await system.disturbed(row, {FAULT_AT: lambda: system.kill_all("gateway")}, num_verifiers=1)
        assert isinstance(seen.error, ServiceUnavailable)
        again = await watch(system.stream())
        row.seen += "; asked again: the same text"
        assert again.token_ids == system.text


def test_who_listens_where(system: System, chaos: ChaosTable) -> None:
    with chaos.row("served: listeners of our processes") as row:
        processes = {system.process.pid: "serve", **descendants(system.process.pid)}
        doors = {int(endpoint.rpartition(":")[2]) for endpoint, _ in system.endpoints()}
        doors |= {int(endpoint.rpartition(":")[2]) for endpoint in (system.http, system.grpc)}
        mine = [one for pid in processes for one in listeners(pid) if one.port in doors]
        beyond = [one for pid in processes for one in listeners(pid) if not is_loopback(one.host)]
        row.seen = f"ours: {len(mine)}, all on loopback; Ray's: {len(beyond)} beyond it"
        assert {one.port for one in mine} == doors
        assert all(is_loopback(one.host) for one in mine)


def test_pickles_to_every_port(system: System, chaos: ChaosTable, tmp_path: object) -> None:
    with chaos.row("served: a pickle, and noise, to every port of every process") as row:
        canary = f"{tmp_path}/ran"
        # Protocol 0 of os.system("touch ..."), by hand: nothing here imports pickle.
        pickled = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
        processes = [system.process.pid, *descendants(system.process.pid)]
        ports = {one.port for pid in processes for one in listeners(pid)}
        before = set(system.memory_mb())
        for port in ports:
            for data in (pickled, b"\x80\x05" + pickled, b"\x00" * 64, os.urandom(4096)):
                send_and_leave(port, data)
        time.sleep(1.0)
        row.seen = f"{len(ports)} ports, none ran it"
        assert before <= set(system.memory_mb())
        assert {int(endpoint.rpartition(":")[2]) for endpoint in (system.http, system.grpc)} <= ports
        assert not os.path.exists(canary)
        assert system.completes(10.0) == 200


async def test_a_killed_gcs_is_not_noticed_by_a_stream(system: System, chaos: ChaosTable) -> None:
    """The last one here: the command leaves once its cluster is lost."""
    with chaos.row("served: GCS SIGKILL under a stream") as row:
        seen = await watch(system.stream(), {FAULT_AT: lambda: system.kill_program("gcs_server")})
        code = await asyncio.to_thread(system.process.wait, 120)
        row.seen, row.gap_s = f"{seen.told}; serve left with exit code {code}", seen.gap_s
        row.compare(seen.token_ids, system.text)
        assert len(seen.token_ids) == NUM_TOKENS
        assert code == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_stops(chaos: ChaosTable, times: int) -> None:
    with (
        chaos.row(f"served: SIGTERM under a stream, {('once', 'twice')[times - 1]}") as row,
        serving_system() as system,
    ):

        def ask_to_stop() -> None:
            for _ in range(times):
                system.process.send_signal(signal.SIGTERM)
                time.sleep(1.0)

        start_s = time.monotonic()
        seen = await watch(system.stream(), {FAULT_AT: ask_to_stop})
        code = await asyncio.to_thread(system.process.wait, 60)
        row.gap_s = seen.gap_s
        row.seen = f"{seen.told}; exit code {code} after {time.monotonic() - start_s:.0f} s"
        assert code == (0 if times == 1 else -signal.SIGTERM)
        if times == 1:
            assert len(seen.token_ids) == NUM_TOKENS
