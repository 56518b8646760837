"""Child processes: started, told about, started again, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from orchestrator.local import local_services
from orchestrator.local.child import Child
from orchestrator.local.local_services import LocalService, Supervised, cores_for_pinning
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.service.config import parse_flags

FAKE_SERVICE = '''
"""Behaves as its model's name says."""
import json, signal, sys, time

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
model, port = flags["--model"], flags.get("--port", "0")
say = lambda event: print(json.dumps(event), flush=True)
print("no json, and no matter", flush=True)
if model == "bad-flag":
    sys.exit(print("fake-svc: device: 'x' is not here", file=sys.stderr) or 2)
if model == "refused":
    sys.exit(print("noise\\nfake-svc: MODEL_LOAD_FAILED: no such model", file=sys.stderr) or 1)
if model == "broken":
    raise RuntimeError("a bug")
if model == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say({"event": "loading", "stage": "weights", "done": 1, "total": 2})
if model == "slow":
    say({"event": "notice", "text": "SLOW: no fused attention"})
say({"event": "ready", "endpoint": "127.0.0.1:" + ("4242" if port == "0" else port)})
if model == "short-lived":
    sys.exit(3)
while model == "stubborn":
    time.sleep(1)
while sys.stdin.buffer.read1(4096):
    pass
'''


@pytest.fixture(autouse=True)
def fake_svc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_svc.py").write_text(FAKE_SERVICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local_services, "FIRST_BACKOFF_S", 0.01)


class Watched:
    """A supervised fake service, and what was said about it."""

    def __init__(self, model: str) -> None:
        self.stages: list[tuple[str, str, int, int]] = []
        self.notices: list[str] = []
        self._news = asyncio.Event()
        self.service = Supervised(LocalService.of("fake", model), self._on_notice)

    async def start(self) -> None:
        await self.service.start(lambda *stage: self.stages.append(stage))

    async def heard(self, words: str) -> None:
        while not any(words in notice for notice in self.notices):
            self._news.clear()
            await self._news.wait()

    def _on_notice(self, notice: str) -> None:
        self.notices.append(notice)
        self._news.set()


@pytest.fixture
async def watch() -> AsyncIterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def make(model: str) -> Watched:
        made.append(Watched(model))
        return made[-1]

    yield make
    for watched in made:
        await watched.service.stop()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


Watch = Callable[[str], Watched]


async def test_loading_is_told_and_the_endpoint_known(watch: Watch) -> None:
    watched = watch("good")
    await watched.start()
    assert watched.stages == [("fake", "weights", 1, 2)]
    assert watched.service.endpoint == "127.0.0.1:4242"


async def test_what_a_service_notes_while_it_loads_is_told(watch: Watch) -> None:
    watched = watch("slow")
    await watched.start()
    assert watched.notices == ["fake: SLOW: no fused attention"]


async def test_stopping_ends_it_and_can_be_repeated(watch: Watch) -> None:
    watched = watch("good")
    await watched.start()
    pid = watched.service.pid
    await watched.service.stop()
    await watched.service.stop()
    assert pid is not None
    assert not is_alive(pid)
    assert watched.notices == []


async def test_one_that_dies_is_started_again_on_the_same_port(watch: Watch) -> None:
    watched = watch("good")
    await watched.start()
    pid = watched.service.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await watched.heard("is back at 127.0.0.1:4242")
    assert watched.service.pid != pid
    assert watched.notices[0] == "the fake was killed by signal 9; starting it again"


async def test_one_that_keeps_dying_is_left_alone(watch: Watch) -> None:
    watched = watch("short-lived")
    await watched.start()
    await watched.heard("died 5 times in a row and is left alone")
    assert watched.notices.count("the fake ended with exit code 3; starting it again") == 5


async def test_a_bad_flag_is_named(watch: Watch) -> None:
    with pytest.raises(InvalidArgument, match="device: 'x' is not here") as caught:
        await watch("bad-flag").start()
    assert caught.value.field == "device"


async def test_a_refusal_is_told_in_its_own_words(watch: Watch) -> None:
    with pytest.raises(ServiceUnavailable, match=r"^the fake did not start: MODEL_LOAD_FAILED: no such model$"):
        await watch("refused").start()


async def test_a_crash_is_told_with_its_last_words(watch: Watch) -> None:
    with pytest.raises(ServiceUnavailable, match="RuntimeError: a bug"):
        await watch("broken").start()


async def test_one_that_ignores_sigterm_is_killed() -> None:
    child = await Child.start("fake_svc", LocalService.of("fake", "stubborn").arguments(0))
    while (await child.next_event() or {}).get("event") != "ready":
        pass
    await child.stop(grace_s=0.1)
    assert not is_alive(child.pid)
    assert await child.wait() == -signal.SIGKILL


async def test_writing_to_a_dead_child_is_an_error() -> None:
    child = await Child.start("fake_svc", LocalService.of("fake", "refused").arguments(0))
    await child.wait()
    # The pipe's end is heard of a moment after the process's.
    await asyncio.sleep(0.1)
    with pytest.raises(ServiceUnavailable, match="is gone"):
        await asyncio.gather(*(child.send({}) for _ in range(3)))
    await child.stop()


PARENT = """
import asyncio, os
from orchestrator.local.child import Child
from orchestrator.local.local_services import LocalService

async def main():
    child = await Child.start("fake_svc", LocalService.of("fake", "good").arguments(0))
    while (await child.next_event())["event"] != "ready":
        pass
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_a_killed_parent_leaves_no_orphan() -> None:
    parent = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_the_flags_of_a_service_are_what_differs_from_its_defaults() -> None:
    service = LocalService.of("drafter", "m", threads=2, cpu=1, max_sessions=3, kv_tokens=32, run_ahead=0)
    assert service.module == "drafter_svc"
    parsed = parse_flags("drafter", service.arguments(7))
    assert (parsed.model, parsed.host, parsed.port, parsed.cpu, parsed.threads) == ("m", "127.0.0.1", 7, 1, 2)
    assert (parsed.max_sessions, parsed.kv_tokens, parsed.run_ahead_rows) == (3, 32, 0)
    assert (parsed.json_events, parsed.exit_with_stdin) == (True, True)
    usual = LocalService.of("drafter", "m").arguments(0)
    assert usual[:2] == ["--model", "m"]
    assert not {"--cpu", "--prefill-chunk", "--run-ahead", "--attention", "--port"} & set(usual)
    other = LocalService.of("verifier", "m", dtype="float16", attention="sdpa", cuda_graphs=False, cpu_graphs=False)
    assert " ".join(other.arguments(0)).startswith(
        "--model m --dtype float16 --attention sdpa --no-cuda-graphs --no-cpu-graphs --threads 1"
    )


@pytest.mark.parametrize(("name", "value"), [("max_sessions", 0), ("run_ahead", 1)])
def test_settings_that_a_verifier_cannot_have_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"^--{name.replace('_', '-')}: "):
        LocalService.of("verifier", "m", **{name: value})


def test_pinning_takes_two_cores_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    assert cores_for_pinning() == (3, 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cores_for_pinning() is None
