"""Fake drafters over real gRPC, and a fake of vLLM's runner that asks them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.specgate_vllm.runner import Runner, vllm_config
from tests.support.fake_services import FakeService, serving
from tests.support.fakes import FakeDrafter
from tests.support.loop_thread import LoopThread

Serve = Callable[..., FakeService]
Run = Callable[..., Runner]


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """The loop of the drafters: vLLM's own thread has none."""
    with LoopThread() as thread:
        yield thread


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Serve]:
    """Start a drafter; keywords are those of ``FakeDrafter``."""
    opened: list[Any] = []

    def start(**values: Any) -> FakeService:
        service = loop.entered(serving("drafter", lambda spec: FakeDrafter(spec, **values)))
        opened.append(service)
        return service.__enter__()

    yield start
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture
def run() -> Iterator[Run]:
    """Make a runner whose proposer asks these endpoints; keywords are settings, and those of ``vllm_config``."""
    made: list[Runner] = []

    def make(*endpoints: str, step_s: float = 0.002, **values: Any) -> Runner:
        made.append(Runner(vllm_config(*endpoints, **values), step_s))
        return made[-1]

    yield make
    for one in made:
        if one.proposer.desk is not None:
            one.proposer.desk.close()
