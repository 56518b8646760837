"""Child processes: started, told about, started again, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.local import local_services
from orchestrator.local.child import Child
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.local_services import LocalService, Supervised
from specgate.errors import InvalidArgument, ServiceUnavailable, SpecgateError
from specgate.service.config import parse_flags
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.services import is_gone

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
    # Five starts in a row would take six seconds.
    monkeypatch.setattr(local_services, "FIRST_BACKOFF_S", 0.01)


class Watched(Supervised):
    """A supervised fake service, and what was said about it."""

    def __init__(self, model: str) -> None:
        self.stages: list[tuple[str, str, int, int]] = []
        self.notices: list[str] = []
        super().__init__(LocalService.of("fake", model), self.notices.append)

    async def heard(self, words: str) -> None:
        while not any(words in notice for notice in self.notices):  # noqa: ASYNC110 - a plain list
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(model: str) -> AsyncIterator[Watched]:
    service = Watched(model)
    try:
        await service.start(lambda *stage: service.stages.append(stage))
        yield service
    finally:
        await service.stop()


async def test_what_a_service_tells_while_it_loads_is_told_and_stopping_ends_it() -> None:
    async with watched("good") as service:
        assert service.stages == [("fake", "weights", 1, 2)]
        assert service.notices == ["fake: SLOW: no fused attention"]
        assert service.endpoint == "127.0.0.1:4242"
        pid = service.pid
    await service.stop()
    assert pid is not None
    assert is_gone(pid)
    assert len(service.notices) == 1


async def test_one_that_dies_is_started_again_on_the_same_port() -> None:
    async with watched("good") as service:
        pid = service.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await service.heard("is back at 127.0.0.1:4242")
        assert service.pid != pid
        assert any("signal 9" in notice for notice in service.notices)


async def test_one_that_keeps_dying_is_left_alone() -> None:
    async with watched("short-lived") as service:
        await service.heard("5 times in a row and is left alone")
        assert sum("exit code 3" in notice for notice in service.notices) == 5


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("bad-flag", InvalidArgument, "device: 'x' is not here"),
        ("refused", ServiceUnavailable, r"^the fake did not start: MODEL_LOAD_FAILED: no such model$"),
        ("broken", ServiceUnavailable, "RuntimeError: a bug"),
    ],
)
async def test_why_one_does_not_start_is_told_in_its_last_words(
    model: str, error: type[SpecgateError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        async with watched(model):
            pass
    assert getattr(caught.value, "field", "device") == "device"


async def started(model: str) -> Child:
    return await Child.start("fake_svc", LocalService.of("fake", model).arguments(0))


async def test_one_that_ignores_sigterm_is_killed() -> None:
    child = await started("stubborn")
    while (await child.next_event() or {}).get("event") != "ready":
        pass
    await child.stop(grace_s=0.1)
    assert is_gone(child.pid)
    assert await child.wait() == -signal.SIGKILL


async def test_writing_to_a_dead_child_is_an_error() -> None:
    child = await started("refused")
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
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    wait_until(lambda: is_gone(pid))


def test_the_flags_of_a_service_are_what_differs_from_its_defaults() -> None:
    service = LocalService.of("drafter", "m", threads=2, cpu=1, max_sessions=3, kv_tokens=32, run_ahead=0)
    assert service.module == "drafter_svc"
    parsed = parse_flags("drafter", service.arguments(7))
    assert (parsed.model, parsed.host, parsed.port, parsed.cpu, parsed.threads) == ("m", "127.0.0.1", 7, 1, 2)
    assert (parsed.max_sessions, parsed.kv_tokens, parsed.drafting.run_ahead_rows) == (3, 32, 0)
    assert (parsed.json_events, parsed.exit_with_stdin) == (True, True)
    usual = LocalService.of("drafter", "m").arguments(0)
    assert not {"--cpu", "--prefill-chunk", "--run-ahead", "--attention", "--port"} & set(usual)
    other = LocalService.of("verifier", "m", dtype="float16", cuda_graphs=False).arguments(0)
    assert {"--model", "--dtype", "--no-cuda-graphs"} < set(other)


@pytest.mark.parametrize(("name", "value"), [("max_sessions", 0), ("run_ahead", 1)])
def test_settings_that_a_verifier_cannot_have_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"^--{name.replace('_', '-')}: "):
        LocalService.of("verifier", "m", **{name: value})


def test_pinning_takes_two_cores_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine has the cores that it has.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    assert cores_for_pinning() == (3, 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cores_for_pinning() is None
