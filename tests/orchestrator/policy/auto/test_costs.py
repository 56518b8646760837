"""Prices: what was told, what verdicts say, and who shares the verifier."""

from dataclasses import replace

import pytest

from orchestrator.policy.auto.costs import Costs, MeasuredCosts, Prices, forward_us
from specgate.types import NO_PROPOSAL, ForwardCost, RoundRecord, RoundTiming
from tests.orchestrator.policy.auto.support import DRAFT_US, FORWARD_US, OVERHEAD_US, ROW_US, a_round, measured, solo


def prices(*records: RoundRecord, costs: MeasuredCosts | None = None, times: int = 60) -> Prices:
    learned = Costs(lambda: costs or measured())
    for record in records * times:
        learned.observe(0, record)
    found = learned.now()
    assert found is not None
    return found


def test_told_widths_are_read_on_straight_lines() -> None:
    costs = (ForwardCost(1, 100), ForwardCost(4, 130), ForwardCost(8, 330))
    assert [forward_us(costs, rows) for rows in (1, 2, 4, 6, 8, 10)] == [100, 110, 130, 230, 330, 430]
    assert forward_us((ForwardCost(1, 100),), 11) == 200
    assert forward_us((ForwardCost(41, 500),), 1) == 100


def test_nothing_is_known_before_anything_was_told_or_seen() -> None:
    costs = Costs(MeasuredCosts)
    assert costs.now() is None
    assert costs.draft_prompt_us(100) == 0
    costs.observe(0, a_round())
    assert costs.now() is not None


def test_told_costs_hold_until_verdicts_say_otherwise() -> None:
    at_first, later = prices(times=0), prices(a_round(), a_round(2), a_round(6), pace_solo := solo())
    assert at_first.forward_us(1) == FORWARD_US
    assert at_first.token_us == pytest.approx(DRAFT_US)
    assert pace_solo.undrafted
    assert later.forward_us(5) == pytest.approx(FORWARD_US + 4 * ROW_US, rel=0.02)
    assert later.overhead_us == pytest.approx(OVERHEAD_US, rel=0.1)
    assert later.token_us == pytest.approx(DRAFT_US, rel=0.05)


@pytest.mark.parametrize("pace", [0.5, 2.0])
def test_a_machine_that_slows_down_or_speeds_up_is_followed(pace: float) -> None:
    found = prices(a_round(2, pace=pace), a_round(6, pace=pace), times=120)
    assert found.forward_us(1) == pytest.approx(pace * FORWARD_US, rel=0.1)
    assert found.token_us == pytest.approx(pace * DRAFT_US, rel=0.1)
    later = prices(*[a_round(2), a_round(6)] * 60, *[a_round(2, pace=pace), a_round(6, pace=pace)] * 180, times=1)
    assert later.forward_us(1) == pytest.approx(found.forward_us(1), rel=0.1)


def test_a_long_texts_rounds_are_held_against_what_is_told_of_its_length() -> None:
    """What is learned on it is the machine's pace, which holds for short texts too; and they are not made dear."""
    told = MeasuredCosts(*(tuple(one._replace(context_us=one.forward_us) for one in each) for each in measured()[:2]))
    alone = solo()
    alone = replace(alone, plan=replace(alone.plan, gamma=0, keeps_warm=False))
    twice = [replace(a_round(gamma, pace=2.0), length=1024) for gamma in (2, 6)]
    costs = Costs(lambda: told)
    for record in [*twice, replace(alone, length=0)] * 60:
        costs.observe(0, record)
    short = costs.now()
    assert short is not None
    assert short.forward_us(1) == pytest.approx(FORWARD_US, rel=0.05)
    assert short.token_us == pytest.approx(DRAFT_US, rel=0.1)
    costs.observe(0, twice[0])
    long = costs.now()
    assert long is not None
    assert long.forward_us(1) == pytest.approx(2 * FORWARD_US, rel=0.05)
    assert long.token_us == pytest.approx(2 * DRAFT_US, rel=0.1)
    assert long.alone_us == pytest.approx(2 * FORWARD_US, rel=0.05)


def test_without_told_costs_they_are_learned_from_rounds() -> None:
    found = prices(a_round(1), a_round(6), costs=MeasuredCosts(), times=120)
    assert found.forward_us(5) == pytest.approx(FORWARD_US + 4 * ROW_US, rel=0.15)
    assert found.token_us == pytest.approx(DRAFT_US, rel=0.1)


def test_a_target_beside_an_idle_drafter_has_a_pace_of_its_own() -> None:
    """A drafter that works takes time from the cores and the memory that both use."""
    alone = solo()
    alone = replace(alone, plan=replace(alone.plan, gamma=0, keeps_warm=False))
    found = prices(a_round(2, pace=2.0), a_round(6, pace=2.0), alone, times=120)
    assert found.forward_us(1) == pytest.approx(2 * FORWARD_US, rel=0.05)
    assert found.alone_us == pytest.approx(FORWARD_US, rel=0.01)
    # So have several, once none of them is drafted for.
    crowd = prices(*[a_round(4, batch=8, pace=2.0)] * 8, times=60)
    assert crowd.sessions == 8
    assert crowd.alone_us < 0.75 * crowd.forward_us(8, 8)


def test_what_the_rounds_of_many_sessions_wait_for_is_no_cost_of_a_lone_one() -> None:
    costs = Costs(measured)
    for number in range(400):
        costs.observe(number % 8, replace(a_round(4, batch=8), timing=RoundTiming(200_000)))
    many = costs.now()
    for session in range(8):
        costs.leave(session)
    alone = costs.now()
    assert many is not None
    assert alone is not None
    assert many.overhead_us > 5 * alone.overhead_us


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_who_shares_each_forward_waits_for_nobody_else_and_the_whole_verdict_is_a_token(pace: float) -> None:
    told = MeasuredCosts((ForwardCost(1, FORWARD_US), ForwardCost(9, FORWARD_US)))
    idle, busy = replace(solo().plan, gamma=0, keeps_warm=False), a_round(3, batch=4, pace=pace)
    for batch, expected in ((4, 2.0), (2, 1.0)):
        verdict = replace(solo().verdict, verify_us=2 * FORWARD_US, batch_sessions=batch, batch_rows=4)
        costs = Costs(lambda: told)
        for number in range(1000):
            costs.observe(number % 4, busy if number < 200 else replace(solo(), plan=idle, verdict=verdict))
        found = costs.now()
        assert found is not None
        assert found.alone_us == pytest.approx(expected * FORWARD_US, rel=0.1)


def test_a_round_behind_a_token_without_a_draft_is_dearer_by_itself() -> None:
    """Where drafting goes on, its rounds are no dearer for that."""
    late = replace(a_round(4), timing=RoundTiming(a_round(4).timing.round_us + 5000))
    alternate = [solo(), late, a_round(4)] * 100
    found, steady = prices(*alternate, times=1), prices(a_round(4))
    assert found.overhead_us == pytest.approx(steady.overhead_us, rel=0.05)
    assert found.resume_us == pytest.approx(5000, rel=0.1)
    assert prices(*alternate, *[a_round(4)] * 4000, times=1).resume_us < 1000  # It is found out anew now and then.
    hiccup = replace(late, timing=RoundTiming(10**7))
    assert prices(solo(), hiccup, times=1).resume_us < FORWARD_US
    empty = replace(a_round(4), proposal=NO_PROPOSAL)
    assert prices(empty, late).overhead_us > steady.overhead_us  # It was asked for.


def test_a_hiccup_and_a_round_that_holds_a_prompt_are_no_costs() -> None:
    usual = prices(a_round(4))
    late = replace(a_round(4), timing=RoundTiming(10**7))
    assert prices(*[a_round(4)] * 40, late, times=1).overhead_us < usual.overhead_us + FORWARD_US
    with_prompt = replace(late, timing=RoundTiming(10**7, typical=False))
    assert prices(*[a_round(4)] * 60, with_prompt, times=1) == prices(a_round(4))


@pytest.mark.parametrize("batch", [2, 8, 16])
def test_prices_stay_above_zero_where_nothing_was_told_and_forwards_were_wide(batch: int) -> None:
    found = prices(a_round(4, batch=batch), costs=MeasuredCosts(), times=1)
    assert min(found.forward_us(rows) for rows in (1, 5, 100)) >= 1
    assert found.alone_us > 0


def test_noise_in_what_was_told_makes_no_wide_forward_free() -> None:
    costs = (ForwardCost(1, 1990), ForwardCost(9, 2010), ForwardCost(17, 2003))
    assert forward_us(costs, 8000) >= 2003


def test_sessions_are_counted_as_they_come_share_and_leave() -> None:
    costs = Costs(measured)
    for session in range(4):
        costs.observe(session, a_round(batch=2))
    assert costs.sessions == 4
    costs.leave(2)
    costs.leave(2)
    costs.observe(1, replace(a_round(), finished=True))
    costs.observe(3, replace(a_round(), finished=True))
    assert costs.sessions == 2  # A forward was shared with one of another gateway.
    for _ in range(300):
        costs.observe(7, a_round())
    assert costs.sessions == 1  # Session 0 has stopped reading.


def test_who_is_left_alone_is_soon_priced_alone() -> None:
    costs = Costs(measured)
    for session in range(8):
        costs.observe(session, a_round(batch=8))
    for session in range(1, 8):
        costs.leave(session)
    assert costs.sessions == 8  # As long as nothing says otherwise.
    for _ in range(30):
        costs.observe(0, a_round())
    assert costs.sessions == 1


def test_many_sessions_are_all_counted() -> None:
    costs = Costs(measured)
    for number in range(1500):
        costs.observe(number % 500, a_round(batch=0))
    assert costs.sessions == 500


def test_sessions_are_those_of_a_verifier() -> None:
    costs = Costs(measured)
    for session in range(8):
        costs.enter(session)
    assert costs.sessions == 8
    for session in range(8):
        costs.attached(session, f"verifier {session % 4}")
        costs.observe(session, a_round())
    assert costs.sessions == 2
    for number in range(400):  # Seven stall, and go on.
        costs.observe(0 if number < 300 else number % 8, a_round())
    assert costs.sessions == 2
    for session in range(4):
        costs.leave(session)
    assert costs.sessions == 1
