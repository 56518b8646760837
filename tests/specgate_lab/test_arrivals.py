"""Closed loops keep so many busy; open ones send when it is due."""

import asyncio
from itertools import pairwise
from statistics import fmean

import pytest

from orchestrator.decode.request import GenerationRequest
from specgate_lab.arrivals import closed_loop, open_loop, poisson_arrivals
from specgate_lab.timeline import RequestTimeline
from tests.specgate_lab.support import a_request, a_timeline


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential_and_the_same_seed_repeats_them() -> None:
    arrivals = poisson_arrivals(4.0, 20_000, seed=0)
    gaps = [after - before for before, after in pairwise((0.0, *arrivals))]
    assert min(gaps) > 0
    assert fmean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert fmean(gap > 1 / 4 for gap in gaps) == pytest.approx(0.368, abs=0.02)
    assert poisson_arrivals(4.0, 20_000, seed=0) == arrivals != poisson_arrivals(4.0, 20_000, seed=1)


class Sender:
    """Notes what is sent and how many are under way at a time; each takes a few turns of the event loop."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.most = 0
        self._running = 0

    async def __call__(self, request: GenerationRequest, due_s: float) -> RequestTimeline:
        self.sent.append(request.prompt_token_ids[0])
        self._running += 1
        self.most = max(self.most, self._running)
        for _ in range(1 + request.prompt_token_ids[0] % 3):
            await asyncio.sleep(0)
        self._running -= 1
        return a_timeline(due_s)


@pytest.mark.parametrize("num_clients", [1, 3, 20])
async def test_a_closed_loop_sends_all_requests_in_order_by_so_many_clients(num_clients: int) -> None:
    send = Sender()
    traces = await closed_loop(send, [a_request((index,)) for index in range(10)], num_clients)
    assert send.sent == list(range(10))
    assert len(traces) == 10
    assert send.most == min(num_clients, 10)


async def test_an_open_loop_is_due_when_it_says_and_waits_for_nobody() -> None:
    send = Sender()
    now_s = 100.0
    traces = await open_loop(send, [a_request((2,)) for _ in range(5)], (0.0, 0.0, 0.0, 0.0, 0.01), lambda: now_s)
    assert [one.due_s for one in traces] == [100.0, 100.0, 100.0, 100.0, 100.01]
    assert send.most >= 4
