"""A network that is further away: passes TCP on, every byte later by half of an added round trip.

A process of its own, so that its work is not the orchestrator's: ``python -m specgate_lab.network.delay_proxy
--route HOST:PORT,MILLISECONDS ...`` says ``{"event": "ready", "endpoints": [...]}``, one endpoint a route, and runs
until its standard input ends.
"""

import argparse
import asyncio
import contextlib
import json
import selectors
import sys
from collections.abc import Coroutine, Sequence

from specgate.rpc.endpoint import join_endpoint, split_endpoint

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_CHUNKS_UNDERWAY = 256
"""What a line holds before its sender has to wait, 16 MiB a direction; a network holds less."""


class Proxy:
    """Listens on a free port of loopback for connections to ``target`` (HOST:PORT); a subclass passes them on."""

    def __init__(self, target: str) -> None:
        self._target = split_endpoint(target)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Return the endpoint that stands for the target from now on."""
        self._server = await asyncio.start_server(self._connected, _HOST, 0)
        return join_endpoint(_HOST, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and break off what is connected. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, to its end."""
        raise NotImplementedError


class DelayProxy(Proxy):
    """Each direction keeps order and rate, and delivers ``one_way_s`` after it received.

    A connection ends, delayed too, as either side ends it.
    """

    def __init__(self, target: str, one_way_s: float) -> None:
        super().__init__(target)
        self._one_way_s = one_way_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See ``Proxy``."""
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.callback(writer.close)
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            stack.callback(far_writer.close)
            await _both(
                _Line(reader, far_writer, self._one_way_s).run(),
                _Line(far_reader, writer, self._one_way_s).run(),
            )


class _Line:
    """One direction of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way_s: float) -> None:
        self._reader, self._writer, self._one_way_s = reader, writer, one_way_s
        self._underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDERWAY)
        self._now_s = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Return once the end of what was sent is delivered. Raises OSError where a side breaks the connection off."""
        await _both(self._receive(), self._deliver())

    async def _receive(self) -> None:
        chunk = b"begin"
        while chunk:
            chunk = await self._reader.read(_CHUNK_BYTES)
            await self._underway.put((self._now_s() + self._one_way_s, chunk))

    async def _deliver(self) -> None:
        while True:
            due_s, chunk = await self._underway.get()
            if (wait_s := due_s - self._now_s()) > 0:
                await asyncio.sleep(wait_s)
            if not chunk:
                self._writer.write_eof()
                return
            self._writer.write(chunk)
            await self._writer.drain()


async def _both(*works: Coroutine[None, None, None]) -> None:
    """Run both; the first that fails ends the other, and its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the proxies of all routes until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m specgate_lab.network.delay_proxy", description=__doc__)
    parser.add_argument("--route", action="append", required=True, help="HOST:PORT,ADDED_ROUND_TRIP_MS")
    routes = [route.rpartition(",") for route in parser.parse_args(argv).route]
    proxies = [DelayProxy(target, float(delay_ms) / 2e3) for target, _, delay_ms in routes]
    # epoll, the usual choice, counts whole milliseconds, as long as the delays themselves; select counts microseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_run(proxies))


async def _run(proxies: Sequence[DelayProxy]) -> None:
    endpoints = [await proxy.start() for proxy in proxies]
    print(json.dumps({"event": "ready", "endpoints": endpoints}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for proxy in proxies:
        await proxy.stop()


if __name__ == "__main__":
    main()
