"""The bundled pair behind both doors, in a process of its own: what that grows by is the doors', and no client's.

The pair has its full context, a chat template, and services of its own: what stops the loop of this process is the
doors' work.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET, Defaults, GatewaySettings
from orchestrator.local.launch import Capacity, Pair, open_pair
from orchestrator.terminal.model_options import ModelOptions
from specgate.garbage import freeze_loaded
from specgate_lab.soak.processes import rss_mb
from tests.orchestrator.api.http_serving import serving_http
from tests.orchestrator.api.queues import PATIENT
from tests.support.at_rest import at_rest
from tests.support.chaos_fleet import NOTHING_LEFT, left_at
from tests.support.tool_calls import TEMPLATES

BEAT_S = 0.001
MODEL = "fake"
CONTEXT_LENGTH = 1024
VOCAB_SIZE = 4096
DOOR_HANG_S = 120.0
"""For 16 answers of as many tokens as there is room for, two slow cores take half of it."""
END_S = 30.0
MAX_GROWN_MB = 20.0
"""10 MB is what 12,000 requests left in memory (compiled grammars, the allocator's own); a leak has no end."""


class DoorProcess:
    """Where the doors are, and what is behind them while nobody asks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        listening = self._told()
        self.url: str = listening["http"]
        self.endpoint: str = listening["grpc"]

    def _told(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._told()

    def at_rest(self) -> Counter[str]:
        """Return what is alive there once all sessions have ended, by class; requests within count as ``inside``."""
        return Counter(self._ask("rest")["at_rest"])

    def memory_mb(self) -> float:
        """Return what the process holds once all sessions have ended, in MB."""
        return float(self._ask("rest")["memory_mb"])

    def worst_ms(self) -> tuple[float, float]:
        """Return the loop's longest stretch of CPU time, and its longest wait, since this was last asked."""
        cpu_ms, wait_ms = self._ask("clock")["worst_ms"]
        return cpu_ms, wait_ms


@contextmanager
def door_process() -> Iterator[DoorProcess]:
    """Serve until the context ends."""
    command = [sys.executable, "-m", "tests.support.door_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield DoorProcess(process)
        # Its input ends with the pipe, and it with its input.
        process.communicate(timeout=END_S)
    assert process.returncode == 0


class LoopClock:
    """The worst that a loop did since it was last read."""

    def __init__(self) -> None:
        self._worst_cpu_s = self._worst_wait_s = 0.0

    async def read(self) -> tuple[float, float]:
        """Return the longest stretch of CPU time and the longest wait, in milliseconds, and begin anew."""
        # What runs now may be the end of a stretch, which the next beat counts.
        await asyncio.sleep(10 * BEAT_S)
        worst = self._worst_cpu_s * 1e3, self._worst_wait_s * 1e3
        self._worst_cpu_s = self._worst_wait_s = 0.0
        return worst

    async def beat(self) -> None:
        """Run for as long as the loop is to be watched. A stretch ends where this is scheduled again."""
        while True:
            cpu_s, due_s = time.thread_time(), time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._worst_cpu_s = max(self._worst_cpu_s, time.thread_time() - cpu_s)
            self._worst_wait_s = max(self._worst_wait_s, time.monotonic() - due_s)


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopClock]:
    """Watch the running loop while the context lasts."""
    clock = LoopClock()
    beating = asyncio.create_task(clock.beat())
    try:
        yield clock
    finally:
        beating.cancel()
        await asyncio.wait((beating,))


async def _rest(pair: Pair, queue: RequestQueue) -> dict[str, Any]:
    services = [*((one, "verifier") for one in pair.verifiers), *((one, "drafter") for one in pair.drafters)]
    left = await asyncio.to_thread(left_at, services)
    inside = queue.num_inside + queue.num_running + queue.num_waiting
    counts = Counter({"inside": inside, "tasks": len(asyncio.all_tasks())})
    counts["held"] = left != NOTHING_LEFT
    return {"at_rest": at_rest() | counts, "memory_mb": rss_mb(os.getpid())}


async def _answer(pair: Pair, queue: RequestQueue, clock: LoopClock) -> None:
    while question := (await asyncio.to_thread(sys.stdin.readline)).strip():
        answer = {"worst_ms": await clock.read()} if question == "clock" else await _rest(pair, queue)
        # To look at what is alive stops the loop: no client's doing.
        await clock.read()
        print(json.dumps(answer), flush=True)


def _chatting_target(folder: Path) -> str:
    """Return a folder with the bundled target, and a template that knows tools."""
    for file in Path(BUNDLED_TARGET).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").symlink_to(TEMPLATES / "hermes.jinja")
    return str(folder)


async def _main(folder: Path) -> None:
    limits = GatewaySettings()
    capacity = Capacity(limits.max_running, CONTEXT_LENGTH)
    models = ModelOptions(_chatting_target(folder), BUNDLED_DRAFT)
    log = Console(stderr=True, quiet=True)
    async with (
        open_pair(models, with_draft=True, capacity=capacity, log=log, timeouts=PATIENT) as pair,
        watched_loop() as clock,
    ):
        queue = RequestQueue(pair.orchestrator, limits, Defaults(max_tokens=8), MODEL)
        api = GrpcApi(queue, Listen(), drain_s=0.0)
        await api.start()
        async with serving_http(queue) as url:
            freeze_loaded()
            print(json.dumps({"http": url, "grpc": api.endpoint}), flush=True)
            await _answer(pair, queue, clock)
        await api.drain()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_main(Path(folder)))
