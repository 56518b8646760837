"""The line between orchestrator and services: late, unsteady, broken off, lossy, unplugged."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from orchestrator.services.timeouts import Timeouts
from specgate.errors import ServiceUnavailable
from specgate.types import TokenSource
from specgate_lab.network.delay_proxy import DelayProxy
from tests.support.chaos_client import At, seen_from
from tests.support.chaos_fleet import Fleet
from tests.support.chaos_proxy import BadLine
from tests.support.chaos_streams import FAULT_AT, NUM_TOKENS
from tests.support.chaos_table import ChaosRow, ChaosTable
from tests.support.running_policy import AlwaysRunning
from tests.support.services import PAIR, Service, running
from tests.support.two_hosts import ADDRESSES, TwoHosts, two_hosts, why_not

pytestmark = pytest.mark.chaos

JITTER_S = 0.1
FREEZE_S = 0.2
BAD_WAYS: dict[str, dict[str, Any]] = {
    "late": {"jitter_s": JITTER_S / 4},
    "freezes": {"freeze_s": FREEZE_S},
    "resets": {"num_resets": 3, "max_bytes": 1 << 16},
}
NUM_RESETS = 20
LOSS_PERCENT = 3
UNPLUGGED_S = 3.0


@pytest.mark.parametrize("delay_ms", [20, 100])
async def test_a_longer_way(fleet: Fleet, chaos: ChaosTable, delay_ms: int) -> None:
    with chaos.row(f"network: {delay_ms} ms of round trip to both services") as row:
        async with AsyncExitStack() as stack:
            far = []
            for service in (fleet.drafter, fleet.verifiers[0]):
                proxy = DelayProxy(service.endpoint, delay_ms / 2e3)
                far.append(At(await proxy.start()))
                stack.push_async_callback(proxy.stop)
            start_s = time.monotonic()
            seen = await fleet.disturbed(row, {}, drafter=far[0], verifier=far[1])
            row.seen = f"{NUM_TOKENS / (time.monotonic() - start_s):.0f} tokens/s, {row.seen}"
        assert len(seen.token_ids) == NUM_TOKENS
        # A late draft is no lost one.
        assert TokenSource.ACCEPTED in seen.sources[-60:]


async def test_an_unsteady_way(fleet: Fleet, chaos: ChaosTable) -> None:
    with chaos.row(f"network: each packet up to {JITTER_S * 1e3:g} ms late") as row:
        async with (
            BadLine(fleet.drafter.endpoint, JITTER_S) as drafter,
            BadLine(fleet.verifiers[0].endpoint, JITTER_S) as verifier,
        ):
            seen = await fleet.disturbed(row, {}, drafter=drafter, verifier=verifier)
        assert len(seen.token_ids) == NUM_TOKENS
        assert TokenSource.ACCEPTED in seen.sources[-60:]


async def test_a_way_that_freezes(fleet: Fleet, chaos: ChaosTable) -> None:
    with chaos.row(f"network: nothing passes for {FREEZE_S * 1e3:g} ms of each second") as row:
        async with (
            BadLine(fleet.drafter.endpoint, freeze_s=FREEZE_S) as drafter,
            BadLine(fleet.verifiers[0].endpoint, freeze_s=FREEZE_S) as verifier,
        ):
            seen = await fleet.disturbed(row, {}, drafter=drafter, verifier=verifier)
        assert len(seen.token_ids) == NUM_TOKENS
        assert TokenSource.ACCEPTED in seen.sources[-60:]


@pytest.mark.parametrize("fault", BAD_WAYS)
async def test_a_running_draft_on_a_bad_way(fleet: Fleet, chaos: ChaosTable, fault: str) -> None:
    """What arrives late, twice, or not at all is passed over by its place in the text."""
    faults = BAD_WAYS[fault]
    with chaos.row(f"network: a running draft, {fault}") as row:
        async with (
            BadLine(fleet.drafter.endpoint, **faults) as drafter,
            BadLine(fleet.verifiers[0].endpoint, **faults | {"num_resets": 0}) as verifier,
        ):
            seen = await fleet.disturbed(row, {}, drafter=drafter, verifier=verifier, policy=AlwaysRunning(3, 64))
        assert len(seen.token_ids) == NUM_TOKENS


async def test_connections_reset_at_random_bytes(fleet: Fleet, chaos: ChaosTable) -> None:
    with chaos.row(f"network: connections reset after a random number of bytes, {NUM_RESETS} a service") as row:
        async with (
            BadLine(fleet.drafter.endpoint, num_resets=NUM_RESETS) as drafter,
            BadLine(fleet.verifiers[0].endpoint, num_resets=NUM_RESETS) as verifier,
        ):
            # Requests until the line is good. One whose only verifier is lost thrice without a token fails: few are.
            num_failed = 0
            while verifier.num_reset < NUM_RESETS:
                try:
                    seen = await fleet.disturbed(row, {}, drafter=drafter, verifier=verifier, timeouts=Timeouts())
                    num_failed += seen.error is not None
                except ServiceUnavailable:
                    # Not even what it serves could be asked.
                    num_failed += 1
            seen = await fleet.disturbed(row, {}, drafter=drafter, verifier=verifier)
            row.seen = (
                f"{verifier.num_reset + drafter.num_reset} resets, {num_failed} requests failed; then: {row.seen}"
            )
        assert len(seen.token_ids) == NUM_TOKENS
        assert num_failed < NUM_RESETS / 2


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def far(hosts: TwoHosts) -> Iterator[tuple[Service, Service]]:
    """A verifier and a drafter on host b."""
    where = ("--host", ADDRESSES["b"], "--insecure")
    with (
        running("verifier", PAIR / "target", *where, prefix=hosts.on("b")) as verifier,
        running("drafter", PAIR / "draft", *where, prefix=hosts.on("b")) as drafter,
    ):
        yield verifier, drafter


async def over_the_cable(
    row: ChaosRow, hosts: TwoHosts, far: tuple[Service, Service], text: list[int], faults: dict[int, Callable[[], None]]
) -> None:
    """Run the seeded stream from host a."""
    client = [sys.executable, "-m", "tests.support.chaos_client", *(one.endpoint for one in far)]
    told = await seen_from([*hosts.on("a"), *client], faults)
    row.seen, row.gap_s = told["told"], told["gap_s"]
    row.text_equal = told["token_ids"] == text
    assert row.text_equal


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft")
async def test_lost_packets(fleet: Fleet, hosts: TwoHosts, far: tuple[Service, Service], chaos: ChaosTable) -> None:
    with chaos.row(f"two hosts: {LOSS_PERCENT} % of all packets lost, both ways") as row:
        hosts.lose(LOSS_PERCENT)
        try:
            await over_the_cable(row, hosts, far, fleet.text, {})
        finally:
            num_lost = hosts.stop_losing()
        row.seen = f"{num_lost} packets lost: {row.seen}"
        assert num_lost


async def test_an_unplugged_cable(
    fleet: Fleet, hosts: TwoHosts, far: tuple[Service, Service], chaos: ChaosTable
) -> None:
    with chaos.row(f"two hosts: the cable out for {UNPLUGGED_S:g} s") as row:

        def unplug() -> None:
            hosts.plug(in_=False)
            time.sleep(UNPLUGGED_S)
            hosts.plug(in_=True)

        await over_the_cable(row, hosts, far, fleet.text, {FAULT_AT: unplug})
        # On this side nothing hears what the far one holds but by asking it from there.
        assert row.gap_s is not None
        assert UNPLUGGED_S / 2 < row.gap_s < 30.0
