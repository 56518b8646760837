"""What sharing a verifier takes: against a simulated one, and in the cases whose answer is plain."""

from dataclasses import replace
from itertools import count

import pytest

from orchestrator.auto.costs import Costs
from orchestrator.auto.forwards import PRICED_FROM, ForwardPrices
from orchestrator.auto.machine import Clock, Device, Forward
from orchestrator.auto.options import Outcome, load
from orchestrator.auto.prices import Prices
from orchestrator.auto.replay import GOLDEN
from tests.orchestrator.auto.support import a_round

FORWARD_US, SESSION_US, ROW_US = 8000, 1000, 300
FORWARDS = ForwardPrices(FORWARD_US, (SESSION_US,) * len(PRICED_FROM), ROW_US)
ROWS = 4
NUM_TURNS = 400


def prices_for(sessions: int, groups: float) -> Prices:
    return Prices(FORWARDS, 0, 0.0, 0, 0, 0, sessions=sessions, groups=groups)


def simulated_cycle_us(sessions: int, away_us: float) -> float:
    """Return what a turn takes on average: away, give or take a half of it, then a forward of all who are there."""
    clock, numbers, ends = Clock(), count(), list[float]()
    device = Device(clock, FORWARD_US, SESSION_US, ROW_US)

    def come_back(_: Forward | None = None) -> None:
        ends.append(clock.now_us)
        if len(ends) < NUM_TURNS * sessions:
            clock.after(away_us * (0.5 + next(numbers) * GOLDEN % 1), lambda: device.submit(ROWS, come_back))

    for _ in range(sessions):
        come_back()
    clock.run()
    return ends[-1] * sessions / len(ends)


@pytest.mark.parametrize("sessions", [2, 4, 8])
@pytest.mark.parametrize("away_us", [1000, 6000, 15_000, 40_000, 150_000])
def test_a_turn_takes_what_it_takes_on_a_simulated_verifier(sessions: int, away_us: float) -> None:
    outcome = Outcome(tokens=1, rows=ROWS, besides_us=away_us, waits=0, alone=0)
    cycle_us = load(outcome, prices_for(sessions, groups=sessions)).cycle_us
    # Of two that are hardly away each always finds the other in a forward, more often than the formula says.
    within = 0.11 if (sessions, away_us) == (2, 1000) else 0.03
    assert cycle_us == pytest.approx(simulated_cycle_us(sessions, away_us), rel=within)


def test_who_comes_and_goes_together_waits_for_nobody() -> None:
    prices = prices_for(8, groups=1)
    assert prices.batch(0.1) == prices.batch(0.9) == pytest.approx(8)
    assert prices.wait_us(away_us=2000, forward_us=9000, share=0.8) == 0


def test_one_that_is_hardly_ever_in_a_forward_meets_nobody() -> None:
    prices = prices_for(8, groups=8)
    assert prices.batch(0.001) == pytest.approx(1, abs=0.01)
    assert prices.wait_us(away_us=1e6, forward_us=9000, share=0.001) < 100
    assert prices.batch(1.0) == 8


@pytest.mark.parametrize(("away_us", "waited_us"), [(0, 9000), (3000, 6000), (4500, 4500), (30_000, 4500)])
def test_a_forward_that_began_when_a_round_left_is_waited_for(away_us: float, waited_us: float) -> None:
    prices = prices_for(64, groups=64)
    assert prices.wait_us(away_us, forward_us=9000, share=0.5) == pytest.approx(waited_us)


@pytest.mark.parametrize("groups", [2, 4, 8])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_groups_are_found_out_from_how_many_meet(groups: int, share: float) -> None:
    batch = round(prices_for(8, groups).batch(share))
    costs = Costs()
    for number in range(800):
        seen = a_round(3, batch=batch)
        costs.observe(replace(seen, round_us=round(seen.forward_us / share)), session=number % 8)
    prices = costs.now()
    assert prices is not None
    assert prices.batch(share) == pytest.approx(batch, rel=0.1)


def test_where_nobody_leaves_the_verifier_sessions_count_as_apart() -> None:
    costs = Costs()
    for number in range(800):
        seen = a_round(3, batch=8)
        costs.observe(replace(seen, round_us=seen.verify_us), session=number % 8)
    prices = costs.now()
    assert prices is not None
    assert prices.groups == 8
