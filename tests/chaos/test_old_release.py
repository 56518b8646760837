"""Services of an old release are replaced under requests, one after the other: every text is the target's own."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate.types import TokenSource
from tests.support.chaos_fleet import NOTHING_LEFT, left_at
from tests.support.chaos_streams import Seen, watch
from tests.support.chaos_table import ChaosRow, ChaosTable
from tests.support.old_release import LONG_TEXTS, NUM_PROMPT, SHORT, OldRelay
from tests.support.orchestrating import connected, run_all
from tests.support.patience import eventually
from tests.support.services import PAIR, Service, of_short_context, running

ROW = "drafters and verifiers of 0.1.0 replaced one after the other, and the drafters back"
NUM_CLIENTS = 4
NUM_BETWEEN = 6
REQUESTS = [replace(one, gamma=3, gate=Gate.NONE) for one in LONG_TEXTS]


class Load:
    """Clients that ask again and again; each answer is compared."""

    def __init__(self, orchestrator: Orchestrator, row: ChaosRow, expected: list[tuple[int, ...]]) -> None:
        self._orchestrator, self._row, self._expected = orchestrator, row, expected
        self.num_done = 0
        self.goes_on = True

    async def client(self) -> None:
        while self.goes_on:
            for one in zip(REQUESTS, self._expected, strict=True):
                await self._ask(*one)

    async def more(self) -> None:
        """Return when ``NUM_BETWEEN`` more texts are there."""
        enough = self.num_done + NUM_BETWEEN
        await eventually(lambda: self.num_done >= enough)

    async def _ask(self, request: GenerationRequest, expected: tuple[int, ...]) -> Seen:
        seen = await watch(aiter(self._orchestrator.generate(request)))
        assert seen.error is None
        assert len(seen.token_ids) == len(expected)
        self._row.compare(seen.token_ids, expected)
        self._row.gap_s = max(self._row.gap_s or 0.0, seen.gap_s)
        self.num_done += 1
        return seen

    async def drafted_late(self) -> int:
        """Return how many tokens were drafted where the drafters hold no more, in one request of each kind."""
        late = SHORT + 1 - NUM_PROMPT
        seen = [await self._ask(*one) for one in zip(REQUESTS, self._expected, strict=True)]
        return sum(one.sources[late:].count(TokenSource.ACCEPTED) for one in seen)


async def put(service: Service, place: OldRelay, *, is_old: bool) -> None:
    """Replace a service by one of the old release, or of this one, at the same address."""
    await asyncio.to_thread(service.stop)
    place.is_old = is_old
    await asyncio.to_thread(service.start)


@pytest.mark.chaos
async def test_a_rolling_update_under_load(chaos: ChaosTable, tmp_path: Path) -> None:
    roles = ["drafter", "drafter", "verifier", "verifier"]
    models = {"drafter": of_short_context(tmp_path), "verifier": PAIR / "target"}
    async with AsyncExitStack() as stack:
        row = stack.enter_context(chaos.row(ROW))
        services = [stack.enter_context(running(role, models[role])) for role in roles]
        places = [await stack.enter_async_context(OldRelay(service.endpoint)) for service in services]
        async with connected([], services[2:3]) as target:
            alone = await run_all(target, [replace(one, gamma=0) for one in LONG_TEXTS])
        orchestrator = await stack.enter_async_context(connected(places[:2], places[2:]))
        load = Load(orchestrator, row, [one.token_ids for one in alone])
        drafted = [await load.drafted_late()]
        async with asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(load.client())
            for service, place in zip(services, places, strict=True):
                await load.more()
                await put(service, place, is_old=False)
            load.goes_on = False
        drafted.append(await load.drafted_late())
        for service, place in zip(services[:2], places[:2], strict=True):
            await put(service, place, is_old=True)
        drafted.append(await load.drafted_late())
        row.seen = f"{load.num_done} texts; tokens drafted beyond the drafters' context: {drafted}"
        row.left = await asyncio.to_thread(left_at, list(zip([one.endpoint for one in services], roles, strict=True)))
        assert row.left == NOTHING_LEFT
        assert [count > 0 for count in drafted] == [False, True, False]
        assert not [one for place in places for one in place.refusals if "FAILED_PRECONDITION" in one]
