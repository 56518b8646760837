"""Processes killed, stopped and slowed under a stream: it goes on, with its text, or says why it cannot."""

import asyncio
import signal
import time

import pytest

from orchestrator.policy.gates import Gate
from orchestrator.services.timeouts import Timeouts
from specgate.errors import ServiceUnavailable
from specgate.types import TokenSource
from tests.support.chaos_fleet import REQUEST, Fleet
from tests.support.chaos_streams import FAULT_AT, NUM_TOKENS
from tests.support.chaos_table import ChaosTable
from tests.support.orchestrating import connected
from tests.support.services import PAIR, Service, running

LOSSES = [
    pytest.param(signal.SIGKILL, marks=pytest.mark.kills),
    pytest.param(signal.SIGSTOP, marks=pytest.mark.chaos),
]

DRAIN_S = 1.0
"""What ``Service`` gives its streams."""
SLOW_FORWARD_US = 50_000
SLOW = ("tests.support.slow_service", "drafter", str(SLOW_FORWARD_US))


def lose(service: Service, number: signal.Signals) -> None:
    if number is signal.SIGKILL:
        service.kill()
    else:
        service.signal(number)


@pytest.mark.parametrize("number", LOSSES)
async def test_a_lost_drafter_comes_back(fleet: Fleet, chaos: ChaosTable, number: signal.Signals) -> None:
    with chaos.row(f"drafter {number.name}, and back at the same address") as row:
        faults = {FAULT_AT: lambda: lose(fleet.drafter, number), FAULT_AT + 80: fleet.mend}
        seen = await fleet.disturbed(row, faults, pace_s=0.05)
        assert len(seen.token_ids) == NUM_TOKENS
        assert TokenSource.ACCEPTED in seen.sources[-60:]


@pytest.mark.chaos
async def test_a_slow_drafter_is_asked_less(fleet: Fleet, chaos: ChaosTable) -> None:
    with (
        chaos.row(f"drafter slow, {SLOW_FORWARD_US / 1e3:g} ms a forward, under auto") as row,
        running("drafter", PAIR / "draft", module=SLOW) as slow,
    ):
        seen = await fleet.disturbed(row, {}, drafter=slow, gate=Gate.AUTO, gamma=None)
        num_accepted = seen.sources.count(TokenSource.ACCEPTED)
        row.seen = f"{num_accepted} of {NUM_TOKENS} tokens are the drafter's; {row.seen}"
        assert len(seen.token_ids) == NUM_TOKENS
        # Each costs many times what the target takes for one, so what remains is to look whether it still does.
        assert num_accepted < NUM_TOKENS / 10


@pytest.mark.parametrize("number", LOSSES)
async def test_another_verifier_takes_over(fleet: Fleet, chaos: ChaosTable, number: signal.Signals) -> None:
    with chaos.row(f"one of two verifiers {number.name}") as row:
        seen = await fleet.disturbed(row, {FAULT_AT: lambda: lose(fleet.busy_verifier(), number)})
        assert seen.error is None
        assert len(seen.token_ids) == NUM_TOKENS


@pytest.mark.chaos
async def test_the_only_verifier_is_waited_for(fleet: Fleet, chaos: ChaosTable) -> None:
    def kill_and_start() -> None:
        fleet.verifiers[0].kill()
        time.sleep(1.0)
        fleet.verifiers[0].start()

    with chaos.row("the only verifier SIGKILL, its replacement on its way") as row:
        limit = Timeouts(failover_s=60.0)
        seen = await fleet.disturbed(row, {FAULT_AT: kill_and_start}, num_verifiers=1, timeouts=limit)
        assert len(seen.token_ids) == NUM_TOKENS


@pytest.mark.parametrize("number", LOSSES)
async def test_no_verifier_is_an_error_with_its_cause(fleet: Fleet, chaos: ChaosTable, number: signal.Signals) -> None:
    with chaos.row(f"the only verifier {number.name}, and none comes") as row:
        seen = await fleet.disturbed(row, {FAULT_AT: lambda: lose(fleet.verifiers[0], number)}, num_verifiers=1)
        assert isinstance(seen.error, ServiceUnavailable)
        assert f"after {len(seen.token_ids)} emitted tokens" in str(seen.error)
        assert seen.gap_s < 30.0


@pytest.mark.chaos
async def test_a_stop_hands_its_streams_over(fleet: Fleet, chaos: ChaosTable) -> None:
    codes, ends_s = [], []

    def stop() -> None:
        start_s = time.monotonic()
        codes.append(fleet.busy_verifier().stop())
        ends_s.append(time.monotonic() - start_s)

    with chaos.row("verifier SIGTERM under a stream, another one is there") as row:
        seen = await fleet.disturbed(row, {FAULT_AT: stop})
        row.seen += f"; exit code {codes}"
        assert codes == [0]
        # The stream has the second that the service is given for it; who dies at once has an exit code of 0, too.
        assert ends_s[0] >= DRAIN_S
        assert len(seen.token_ids) == NUM_TOKENS


@pytest.mark.chaos
async def test_a_second_stop_ends_at_once(chaos: ChaosTable) -> None:
    with (
        chaos.row("verifier SIGTERM twice under a stream") as row,
        running("verifier", PAIR / "target", "--drain-s", "60") as verifier,
    ):
        async with connected([], [verifier]) as orchestrator:
            deltas = aiter(orchestrator.generate(REQUEST))
            await anext(deltas)
            verifier.signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            start_s = time.monotonic()
            verifier.stop()
            took_s = time.monotonic() - start_s
            await deltas.aclose()
        row.seen = f"ended after {took_s:.1f} s"
        assert took_s < 5.0
