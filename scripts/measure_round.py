#!/usr/bin/env python3
"""What a round takes outside the models, part by part, without a model.

    python scripts/measure_round.py                   # as the processes are placed
    python scripts/measure_round.py --cores 0,1       # this process on one core, the echo's on another
    python scripts/measure_round.py --cold 64         # after reading 64 MB, as the weights of a forward are read

A round that is asked for crosses both links, one whose draft was announced one, and one that the target went on to by
itself none. Medians of microseconds. Between two rounds the models read their weights, so that everything else finds
the caches cold.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specgate.rpc import convert, convert_ahead
from specgate.rpc.channel import CHANNEL_OPTIONS, FLOW_OPTIONS
from specgate.runtime.engine.engine import Engine
from specgate.runtime.kv_pages import PagePool
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal, Verdict, VerifyRequest
from specgate.v1 import drafter_service_pb2 as drafter_pb
from specgate.v1 import verifier_service_pb2 as verifier_pb

METHOD = "Echo"
SERVICE = "specgate.Echo"
DRAFT = (1001, 1002, 1003, 1004, 1005)


def main() -> None:
    arguments = _arguments()
    if arguments.echo:
        asyncio.run(_echo())
        return
    table = Table("part", "µs, median", "90 % below")
    for name, taken in measured_parts(arguments.turns, arguments.cold, arguments.cores):
        table.add_row(name, f"{median(taken):.0f}", f"{quantiles(taken, n=10)[-1]:.0f}")
    Console().print(table)


def measured_parts(turns: int, cold_mb: int, cores: tuple[int, int] | None) -> list[tuple[str, list[float]]]:
    """Return each part's name and its microseconds, turn by turn; see the flags of the command."""
    own, other = cores or (None, None)
    if own is not None:
        os.sched_setaffinity(0, {own})
    with _echoing(other) as port:
        return asyncio.run(_measure(_Watch(turns, cold_mb), port))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=2000, help="of each part")
    parser.add_argument("--cores", type=_two_cores, metavar="N,N", help="of this process, and of the other one")
    parser.add_argument("--cold", type=int, default=0, metavar="MB", help="read so much before each turn")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _two_cores(given: str) -> tuple[int, int]:
    own, other = map(int, given.split(","))
    return own, other


class _Watch:
    """Times steps, each of them after memory was read that pushes everything else out of the caches."""

    def __init__(self, turns: int, cold_mb: int) -> None:
        self._turns = turns
        self._memory = np.ones(cold_mb << 18, np.float32)

    async def each(self, step: Callable[[], Awaitable[Any]]) -> list[float]:
        """Return what each turn takes, after some that are not counted."""
        taken = []
        for turn in range(-max(self._turns // 10, 5), self._turns):
            self._memory.sum()
            start_s = time.perf_counter()
            await step()
            if turn >= 0:
                taken.append((time.perf_counter() - start_s) * 1e6)
        return taken


async def _measure(watch: _Watch, port: int) -> list[tuple[str, list[float]]]:
    engine = Engine(cast(Any, SimpleNamespace(pool=PagePool(1, 64), forward=list)))
    engine.start()
    try:
        rows = [
            ("messages of a round, both links: made, written, read", await watch.each(_messages)),
            ("a turn of the event loop", await watch.each(lambda: asyncio.sleep(0))),
            ("to the engine's thread and back", await watch.each(lambda: engine.run(_nothing()))),
        ]
    finally:
        engine.stop()
    return [*rows, ("to another process and back, over a bare gRPC stream", await _over_grpc(watch, port))]


async def _messages() -> None:
    """Make, serialise and parse the messages of a foreseen round of five tokens, four guesses announced behind it."""
    ahead = tuple(AnnouncedProposal((*DRAFT[:number], 1010), DRAFT) for number in range(4))
    verdict = Verdict(9, 5, 1006, 0.9, verify_us=9000, forward_us=8800, accepted_confidences=(0.9,) * 5)
    for made, message in (
        (convert.draft_round_to_pb(DraftRequest(9, 300, (*DRAFT, 1006), 5, 0.0, 5), 5), drafter_pb.DraftRound),
        (convert.draft_response_to_pb(9, Proposal(DRAFT)), drafter_pb.DraftResponse),
        (convert_ahead.announcement_to_pb(Announcement(300, ahead, len(DRAFT))), drafter_pb.DraftResponse),
        (convert.verify_round_to_pb(VerifyRequest(9, 300, Proposal(DRAFT), 0.0, 0)), verifier_pb.VerifyRound),
        (convert.verdict_to_pb(verdict), verifier_pb.VerifyResponse),
    ):
        message.FromString(made.SerializeToString())


def _nothing() -> Iterator[Any]:
    """Run on the engine's thread without a forward."""
    return
    yield


@contextmanager
def _echoing(core: int | None) -> Iterator[int]:
    """Run the other process; yield its port."""
    command = [sys.executable, __file__, "--echo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        if core is not None:
            os.sched_setaffinity(child.pid, {core})
        yield int(cast(Any, child.stdout).readline())
        cast(Any, child.stdin).close()


async def _over_grpc(watch: _Watch, port: int) -> list[float]:
    """Time messages of 60 bytes that another process sends back."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()

        async def there_and_back() -> None:
            await call.write(b"x" * 60)
            await call.read()

        taken = await watch.each(there_and_back)
        await call.done_writing()
    return taken


async def _echo() -> None:
    """Be the other process: send back what comes, until the standard input ends."""

    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        async for message in requests:
            await context.write(message)

    server = grpc.aio.server(options=FLOW_OPTIONS)
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    main()
