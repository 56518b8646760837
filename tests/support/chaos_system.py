"""``orchestrator serve`` with a Ray of its own, and what is done to it from outside."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import create_connection, create_server

from orchestrator.decode.request import Delta
from specgate_lab.clients import GrpcClient
from specgate_lab.soak.processes import descendants, listeners, rss_mb
from specgate_lab.soak.replicas import ServedReplica, replicas_under
from tests.support.chaos_fleet import NOTHING_LEFT, ask, left_at
from tests.support.chaos_streams import SEEDED, Faults, Seen, watch
from tests.support.chaos_table import ChaosRow
from tests.support.patience import wait_until
from tests.support.services import HELD_OUT_PROMPTS

MODEL = "chaos"
BACK_WITHIN_S = 90.0
HONEST_HOST = "127.0.0.3"
"""Honest clients come from another address than attackers, who may be at the limit of theirs."""
SMALL: Mapping[str, object] = {
    "model_name": MODEL,
    "verifier.max_sessions": 4,
    "drafter.max_sessions": 8,
    "gateway.max_running": 4,
    "gateway.max_queued": 14,
    "gateway.http.port": 0,
    "drain_s": 30,
}
TWO_TOKENS = {"model": MODEL, "prompt": "def f():", "max_tokens": 2, "temperature": 0}


class System:
    """One served system; ``http`` and ``grpc`` are HOST:PORT of its doors."""

    def __init__(self, process: "subprocess.Popen[str]", http: str, grpc: str) -> None:
        self.process, self.http, self.grpc = process, http, grpc
        self.text: list[int] = []

    def replicas(self, role: str) -> list[int]:
        """Return the process ids of a role's replicas."""
        return [one.pid for one in replicas_under(self.process.pid) if one.role == role]

    def endpoints(self) -> list[tuple[str, str]]:
        """Return (endpoint, role) of every drafter and verifier that answers."""
        found = []
        for replica in replicas_under(self.process.pid):
            found += [(endpoint, replica.role) for endpoint in [_endpoint(replica)] if endpoint]
        return found

    def kill_busy(self, role: str) -> None:
        """Kill the replica of a role that has a session."""
        for replica in replicas_under(self.process.pid):
            endpoint = _endpoint(replica) if replica.role == role else None
            if endpoint and ask(endpoint, role).active_sessions:
                return os.kill(replica.pid, signal.SIGKILL)
        raise RuntimeError(f"no {role} has a session")

    def kill_all(self, role: str) -> None:
        """Kill every replica of a role."""
        for pid in self.replicas(role):
            os.kill(pid, signal.SIGKILL)

    def kill_program(self, name: str) -> None:
        """Kill a process of Ray's own, such as gcs_server."""
        for pid, command in descendants(self.process.pid).items():
            if name in command.partition(" ")[0]:
                return os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"no {name} runs")

    def wait_back(self, num_verifiers: int = 2) -> None:
        """Return once all replicas answer again, and a completion is served."""
        expected = sorted(["drafter"] + ["verifier"] * num_verifiers)

        def back() -> bool:
            return sorted(role for _, role in self.endpoints()) == expected and self.completes(5.0) == 200

        wait_until(back, BACK_WITHIN_S)

    def completes(self, timeout_s: float) -> int:
        """Return the status of a completion of two tokens, 0 where there is none in time."""
        return self.asks("POST", "/v1/completions", timeout_s, json.dumps(TWO_TOKENS))

    def asks(self, method: str, path: str, timeout_s: float, body: str | None = None) -> int:
        """Return the status that an honest client gets, 0 where it gets none in time."""
        connection = http.client.HTTPConnection(self.http, timeout=timeout_s, source_address=(HONEST_HOST, 0))
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
        return response.status

    async def stream(self, **changes: object) -> AsyncIterator[Delta]:
        """Stream the seeded request over gRPC, over a connection of its own."""
        request = replace(SEEDED, **changes)
        async with GrpcClient(self.grpc) as client, aclosing(client.stream(request, HELD_OUT_PROMPTS[0])) as deltas:
            async for delta in deltas:
                yield delta

    async def disturbed(self, row: ChaosRow, faults: Faults, *, num_verifiers: int = 2) -> Seen:
        """Run the seeded stream under faults, wait until all is back, and fill in the row."""
        before = self.memory_mb()
        seen = await watch(self.stream(), faults)
        row.seen, row.gap_s = seen.told, seen.gap_s
        self.wait_back(num_verifiers)
        self.check_left(row, before)
        row.compare(seen.token_ids, self.text)
        return seen

    def check_left(self, row: ChaosRow, before: dict[int, float]) -> None:
        """Fill in what is held, and how much more memory those hold that lived through it."""
        endpoints = self.endpoints()
        # Nobody who does not answer is known to hold nothing.
        assert {role for _, role in endpoints} == {"drafter", "verifier"}
        row.left = left_at(endpoints)
        after = self.memory_mb()
        row.grown_mb = sum(after[pid] - before[pid] for pid in before if pid in after)
        assert row.left == NOTHING_LEFT

    def memory_mb(self) -> dict[int, float]:
        """Return what each replica holds, by its process id."""
        return {one.pid: rss_mb(one.pid) for one in replicas_under(self.process.pid)}


def _endpoint(replica: ServedReplica) -> str | None:
    """Return where a drafter or a verifier answers; Ray's ports of the same process do not, nor do its metrics."""
    if replica.role == "gateway":
        return None
    for one in listeners(replica.pid):
        if _tells_metrics(one.port):
            # It would let a call of gRPC wait to its end.
            continue
        endpoint = f"127.0.0.1:{one.port}"
        with suppress(Exception):
            if ask(endpoint, replica.role).role == replica.role:
                return endpoint
    return None


def _tells_metrics(port: int) -> bool:
    with suppress(OSError), create_connection(("127.0.0.1", port), timeout=0.2) as asking:
        asking.settimeout(0.2)
        asking.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        return asking.recv(5) == b"HTTP/"
    return False


@contextmanager
def serving_system(settings: Mapping[str, object] = SMALL, **environment: str) -> Iterator[System]:
    """Start ``orchestrator serve``, and end it with all that it started."""
    folder = Path(tempfile.mkdtemp(prefix="sg", dir="/tmp"))
    # Not 0: a gateway that takes the place of a killed one must be found where that was.
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start_serve({**settings, "gateway.grpc.port": port}, folder, **environment)
    try:
        yield _ready(process, folder)
    finally:
        started = descendants(process.pid)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=40)
        end(process)
        # What a killed Ray leaves behind.
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def start_serve(settings: Mapping[str, object], folder: Path, **environment: str) -> "subprocess.Popen[str]":
    """Start the command with a Ray of its own; its output is JSON lines, what else it says is in ``errors_of``."""
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    # A file: nobody reads a pipe while the system is under attack, and when it is full its writer stands still.
    with (folder / "errors").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", "serve", "--json-events", *flags],
            env={**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": str(folder), **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def end(process: "subprocess.Popen[str]") -> None:
    """Kill it, where it still runs, and let go of its output."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def errors_of(folder: Path) -> str:
    """Return what the command wrote to standard error."""
    return (folder / "errors").read_text(errors="replace")


def _ready(process: "subprocess.Popen[str]", folder: Path) -> System:
    for line in process.stdout or ():
        event = json.loads(line)
        if event["event"] == "ready":
            return System(process, event["http"].removeprefix("http://"), event["grpc"])
    raise RuntimeError(f"orchestrator serve ended before it was ready: {errors_of(folder)}")
