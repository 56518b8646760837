"""Services of an old release are replaced under requests, one after the other: every text is the target's own."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate.types import TokenSource
from tests.support.chaos_fleet import NOTHING_LEFT, left_at
from tests.support.chaos_streams import Seen, watch
from tests.support.chaos_table import ChaosRow, ChaosTable
from tests.support.old_release import LONG_TEXTS, NUM_PROMPT, SHORT, OldRelay
from tests.support.orchestrating import connected, run_all
from tests.support.patience import eventually
from tests.support.services import PAIR, of_short_context, running

NUM_CLIENTS = 4
NUM_BETWEEN = 6
"""Requests that end between one replacement and the next."""
REQUESTS = [replace(one, gamma=3, gate=Gate.NONE) for one in LONG_TEXTS]


class Load:
    """Clients that ask again and again; each answer is compared."""

    def __init__(self, orchestrator: Orchestrator, row: ChaosRow, expected: list[tuple[int, ...]]) -> None:
        self._orchestrator, self._row, self._expected = orchestrator, row, expected
        self.num_done = 0
        self.goes_on = True

    async def client(self) -> None:
        while self.goes_on:
            for one, expected in zip(REQUESTS, self._expected, strict=True):
                await self._ask(one, expected)

    async def _ask(self, request, expected) -> Seen:
        seen = await watch(aiter(self._orchestrator.generate(request)))
        assert seen.error is None
        assert len(seen.token_ids) == len(expected)
        self._row.compare(seen.token_ids, expected)
        self.num_done += 1
        return seen

    async def drafted_late(self) -> int:
        """Return how many tokens were drafted where the drafters hold no more, in one request of each kind."""
        all_seen = [await self._ask(one, expected) for one, expected in zip(REQUESTS, self._expected, strict=True)]
        return sum(seen.sources[SHORT + 1 - NUM_PROMPT :].count(TokenSource.ACCEPTED) for seen in all_seen)


@pytest.mark.chaos
async def test_a_rolling_update_under_load(chaos: ChaosTable, tmp_path: Path) -> None:
    draft = of_short_context(tmp_path)
    async with AsyncExitStack() as stack:
        row = stack.enter_context(chaos.row("two drafters, two verifiers of 0.1.0 are replaced one after the other"))
        roles = ["drafter", "drafter", "verifier", "verifier"]
        models = {"drafter": draft, "verifier": PAIR / "target"}
        services = [stack.enter_context(running(role, models[role])) for role in roles]
        places = [await stack.enter_async_context(OldRelay(service.endpoint)) for service in services]
        async with connected([], services[2:3]) as target:
            alone = await run_all(target, [replace(one, gamma=0) for one in LONG_TEXTS])
        orchestrator = await stack.enter_async_context(connected(places[:2], places[2:]))
        load = Load(orchestrator, row, [one.token_ids for one in alone])
        before = await load.drafted_late()
        async with asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(load.client())
            for service, place in zip(services, places, strict=True):
                enough = load.num_done + NUM_BETWEEN
                await eventually(lambda enough=enough: load.num_done >= enough)
                await asyncio.to_thread(service.stop)
                place.is_old = False
                await asyncio.to_thread(service.start)
            load.goes_on = False
        after = await load.drafted_late()
        row.seen = (
            f"{load.num_done} requests; drafted beyond the drafters' context: {before} tokens before, {after} after"
        )
        row.left = await asyncio.to_thread(
            left_at, [(one.endpoint, role) for one, role in zip(services, roles, strict=True)]
        )
        assert (before, row.left) == (0, NOTHING_LEFT)
        assert after > 0
