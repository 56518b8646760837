"""Ray's own faults: a node that is lost, and a replica that never comes up."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server

import pytest

pytest.importorskip("ray")

from specgate.types import TokenSource
from specgate_lab.soak.processes import descendants
from tests.support.chaos_streams import FAULT_AT, NUM_TOKENS, watch
from tests.support.chaos_system import SMALL, end, errors_of, serving_system, start_serve
from tests.support.chaos_table import ChaosTable
from tests.support.patience import wait_until
from tests.support.services import PAIR

pytestmark = pytest.mark.chaos

RAY = str(Path(sys.executable).parent / "ray")
LEAVES_WITHIN_S = 180.0


class Nodes:
    """A head, and one worker for drafters, each under a process of its own."""

    def __init__(self, folder: Path) -> None:
        with create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._folder = folder
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_head(self) -> None:
        """Start the head, for the verifier and the gateway."""
        self._start(
            "--head", f"--port={self.port}", "--num-cpus=1", "--labels=role=verifier", "--include-dashboard=false"
        )

    def start_worker(self) -> None:
        """Start a node for the drafter."""
        self._start(f"--address={self.address}", "--num-cpus=1", "--labels=role=drafter")

    def kill_worker(self) -> None:
        """Kill the raylet of the node that was started last."""
        for pid, command in descendants(self._started[-1].pid).items():
            if "raylet" in command.partition(" ")[0]:
                os.kill(pid, signal.SIGKILL)

    def _start(self, *flags: str) -> None:
        log = self._folder / f"{len(self._started)}.log"
        command = [RAY, "start", "--block", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [*command, "--disable-usage-stats", f"--temp-dir={self._folder}/r{len(self._started)}", *flags],
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **self.environment},
                )
            )
        wait_until(lambda: b"Ray runtime started" in log.read_bytes(), 60.0)

    def stop(self) -> None:
        """End all that was started."""
        for process in reversed(self._started):
            children = descendants(process.pid)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def running_nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="sg", dir="/tmp"))
    nodes = Nodes(folder)
    try:
        nodes.start_head()
        nodes.start_worker()
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_lost_node_is_not_missed(chaos: ChaosTable) -> None:
    placed = {
        "verifier.placement.node_labels": "{role: verifier}",
        "gateway.placement.node_labels": "{role: verifier}",
        "drafter.placement.node_labels": "{role: drafter}",
    }
    with (
        chaos.row("served: the raylet of the drafter's node SIGKILL under a stream, then another node") as row,
        running_nodes() as nodes,
        serving_system({**SMALL, **placed}, RAY_ADDRESS=nodes.address, **nodes.environment) as system,
    ):
        undisturbed = await watch(system.stream())
        seen = await watch(system.stream(), {FAULT_AT: nodes.kill_worker})
        row.seen, row.gap_s, row.text_equal = seen.told, seen.gap_s, seen.token_ids == undisturbed.token_ids
        assert row.text_equal
        assert len(seen.token_ids) == NUM_TOKENS
        nodes.start_worker()
        start_s = time.monotonic()
        while TokenSource.ACCEPTED not in (await watch(system.stream(max_tokens=40))).sources:
            assert time.monotonic() - start_s < 120.0
            await asyncio.sleep(1.0)
        row.seen += f"; drafts again {time.monotonic() - start_s:.0f} s after a node came"


def test_a_replica_that_never_comes_up(chaos: ChaosTable, tmp_path: Path) -> None:
    with chaos.row("served: a verifier whose constructor fails again and again") as row:
        shutil.copytree(PAIR / "target", tmp_path / "broken")
        for weights in (tmp_path / "broken").glob("*.safetensors"):
            weights.write_bytes(b"no weights")
        folder = Path(tempfile.mkdtemp(prefix="sg", dir="/tmp"))
        start_s = time.monotonic()
        alone = {key: value for key, value in SMALL.items() if not key.startswith("drafter")} | {"drafter": "null"}
        process = start_serve({**alone, "verifier.model": tmp_path / "broken"}, folder)
        try:
            process.wait(timeout=LEAVES_WITHIN_S)
        finally:
            end(process)
            errors = errors_of(folder)
            shutil.rmtree(folder, ignore_errors=True)
        row.seen = f"exit code {process.returncode} after {time.monotonic() - start_s:.0f} s: {errors.strip()[-100:]}"
        assert process.returncode == 1
        assert "Traceback" not in errors
        assert errors.count("orchestrator: ") == 1
