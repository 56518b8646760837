"""Sessions that misbehave in any order, beside one that does not."""

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from specgate.rpc.channel import open_channel
from tests.support.fuzzing import SETTINGS, Budget
from tests.support.in_process import STUBS, serving
from tests.support.loop_thread import LoopThread
from tests.support.models import write_llama
from tests.support.session_machine import SessionMachine, World

pytestmark = pytest.mark.fuzz

SURFACE = "sessions"
STEPS = 30
MACHINES_A_BATCH = 10


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory, fuzz_budget: Budget) -> Iterator[World]:
    folder = write_llama(tmp_path_factory.mktemp("model"), seed=1)
    with (
        LoopThread() as loop,
        loop.entered(serving("drafter", folder)) as drafter,
        loop.entered(serving("verifier", folder)) as verifier,
    ):
        services = {"drafter": drafter, "verifier": verifier}

        async def connect(endpoint: str) -> grpc.aio.Channel:
            return open_channel(endpoint)

        channels = {role: loop.run(connect(service.endpoint)) for role, service in services.items()}
        stubs = {role: STUBS[role](channel) for role, channel in channels.items()}
        yield World(loop, services, stubs, fuzz_budget.of(SURFACE))
        for channel in channels.values():
            loop.run(channel.close())


@pytest.mark.timeout(900)
def test_whatever_others_do_a_session_has_its_text(world: World, fuzz_budget: Budget) -> None:
    limits = settings(SETTINGS, max_examples=MACHINES_A_BATCH, stateful_step_count=STEPS)
    for number in fuzz_budget.batches():
        machine = type("Machine", (SessionMachine,), {"world": world, "_hypothesis_internal_use_seed": number})
        run_state_machine_as_test(machine, settings=limits)
