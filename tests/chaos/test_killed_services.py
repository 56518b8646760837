"""A service is killed or stopped in mid-stream: the same stream goes on, with the same text."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import groupby

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.policy.gates import Gate
from orchestrator.services.timeouts import Timeouts
from specgate.errors import ServiceUnavailable
from specgate.rpc.channel import open_channel
from specgate.types import SamplingParams, TokenSource
from specgate.v1 import types_pb2
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.orchestrating import connected, run
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running

NUM_TOKENS = 400
FAULT_AT = 40
Fault = Callable[[int], Awaitable[None]]


def long_request() -> GenerationRequest:
    prompt = TextTokenizer.load(str(PAIR / "target")).encode(HELD_OUT_PROMPTS[0])
    return GenerationRequest(
        tuple(prompt), SamplingParams(temperature=1.0), NUM_TOKENS, seed=7, gamma=3, gate=Gate.NONE, ignore_eos=True
    )


@pytest.fixture
async def unbroken_text() -> AsyncIterator[tuple[int, ...]]:
    with running("verifier", PAIR / "target") as verifier:
        async with connected([], [verifier]) as orchestrator:
            yield (await run(orchestrator, long_request())).token_ids


async def run_with_fault(orchestrator: Orchestrator, fault: Fault) -> tuple[Generation, list[TokenSource]]:
    """Run the long request; ``fault`` sees how many tokens are out after every delta."""
    generation = orchestrator.generate(long_request())
    sources: list[TokenSource] = []
    async for delta in generation:
        sources += delta.sources
        await fault(len(sources))
    return generation, sources


def phases(sources: list[TokenSource]) -> list[bool]:
    """Return the runs of "alone" (at least 8 solo tokens in a row) and "with a draft"."""
    runs = [(source is TokenSource.SOLO, len(list(group))) for source, group in groupby(sources)]
    alone = [is_solo and length >= 8 for is_solo, length in runs]
    return [key for key, _ in groupby(alone)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.timeout(180)
async def test_a_lost_drafter_leaves_the_target_alone_until_one_is_back(
    unbroken_text: tuple[int, ...], number: signal.Signals
) -> None:
    with running("drafter", PAIR / "draft") as drafter, running("verifier", PAIR / "target") as verifier:
        broken = restored = False

        async def fault(num_tokens: int) -> None:
            nonlocal broken, restored
            if num_tokens >= FAULT_AT and not broken:
                broken = True
                _break(drafter, number)
            elif num_tokens >= FAULT_AT + 80 and not restored:
                restored = True
                if number is signal.SIGKILL:
                    await asyncio.to_thread(drafter.start)
                else:
                    drafter.signal(signal.SIGCONT)
            elif restored:
                # Slow the reader down, so that the drafter is back long before the end.
                await asyncio.sleep(0.02)

        async with connected([drafter], [verifier]) as orchestrator:
            generation, sources = await run_with_fault(orchestrator, fault)
    assert generation.token_ids == unbroken_text
    assert generation.stats.drafter_failures >= 1
    assert TokenSource.ACCEPTED in sources[:FAULT_AT]
    assert phases(sources) == [False, True, False]
    assert TokenSource.ACCEPTED in sources[-60:]


def _break(service: Service, number: signal.Signals) -> None:
    if number is signal.SIGKILL:
        service.kill()
    else:
        service.signal(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
@pytest.mark.timeout(180)
async def test_a_lost_verifier_is_replaced_with_no_gap_and_no_repeat(
    unbroken_text: tuple[int, ...], number: signal.Signals
) -> None:
    target = PAIR / "target"
    with (
        running("drafter", PAIR / "draft") as drafter,
        running("verifier", target) as first,
        running("verifier", target) as second,
    ):
        broken = False

        async def fault(num_tokens: int) -> None:
            nonlocal broken
            if num_tokens >= FAULT_AT and not broken:
                broken = True
                _break(first if await _active_sessions(first) else second, number)

        async with connected([drafter], [first, second]) as orchestrator:
            generation, _ = await run_with_fault(orchestrator, fault)
    assert generation.token_ids == unbroken_text
    assert generation.stats.verifier_failovers == 1


async def _active_sessions(service: Service) -> int:
    async with open_channel(service.endpoint) as channel:
        info = await VerifierServiceStub(channel).GetModelInfo(types_pb2.GetModelInfoRequest())
    return int(info.active_sessions)


async def test_with_no_verifier_left_the_error_tells_how_far_it_came() -> None:
    with running("verifier", PAIR / "target") as verifier:
        async with connected([], [verifier], Timeouts(failover_s=1.0)) as orchestrator:
            generation = orchestrator.generate(long_request())

            async def run_into_the_fault() -> None:
                async for _ in generation:
                    if len(generation.token_ids) == FAULT_AT:
                        verifier.kill()

            with pytest.raises(ServiceUnavailable, match="after 40 emitted tokens"):
                await run_into_the_fault()
