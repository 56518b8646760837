"""The fake pair behind both doors, in a process of its own: what that grows by is the doors', and no client's."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.bench.soak.processes import rss_mb
from tests.orchestrator.api.http_serving import Telling, ascii_tokenizer, serving_http
from tests.orchestrator.api.queues import Room, open_api
from tests.support.at_rest import at_rest

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

    def _look(self) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        return self._told()

    def at_rest(self) -> Counter[str]:
        """Return what is alive there once all sessions have ended, by class; requests within count as ``inside``."""
        return Counter(self._look()["at_rest"])

    def memory_mb(self) -> float:
        """Return what the process holds once all sessions have ended, in MB."""
        return float(self._look()["memory_mb"])


@contextmanager
def door_process() -> Iterator[DoorProcess]:
    """Serve until the context ends."""
    command = [sys.executable, "-m", "tests.support.door_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield DoorProcess(process)
        # Its input ends with the pipe, and it with its input.
        process.communicate(timeout=END_S)
    assert process.returncode == 0


async def _look_at(room: Room) -> dict[str, Any]:
    await room.freed()
    room.forget()
    queue = room.request_queue
    counts = Counter({"inside": queue.num_inside + queue.num_running, "tasks": len(asyncio.all_tasks())})
    return {"at_rest": at_rest() | counts, "memory_mb": rss_mb(os.getpid())}


async def _main() -> None:
    async with open_api(Telling, ascii_tokenizer()) as (room, api), serving_http(room.request_queue) as url:
        print(json.dumps({"http": url, "grpc": api.endpoint}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await _look_at(room)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
