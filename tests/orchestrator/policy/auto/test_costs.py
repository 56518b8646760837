"""Prices from rounds: lines, outliers, load."""

from dataclasses import replace

import pytest

from orchestrator.policy.auto.costs import MAX_WAIT, MIN_ROUNDS, Costs
from orchestrator.policy.auto.forwards import PRICED_FROM
from orchestrator.policy.auto.observation import Observation, PreviousRound
from orchestrator.policy.auto.prices import Prices
from tests.orchestrator.policy.auto.support import GAMMAS, a_round, solo


def prices_of(*seen: Observation, costs: Costs | None = None) -> Prices:
    costs = costs or Costs()
    for observation in seen:
        costs.observe(observation)
    prices = costs.now()
    assert prices is not None
    return prices


def test_nothing_is_known_before_there_were_rounds() -> None:
    costs = Costs()
    for _ in range(MIN_ROUNDS - 1):
        costs.observe(a_round())
    costs.observe(solo())
    assert costs.now() is None
    costs.observe(a_round())
    assert costs.now() is not None


def test_prices_are_what_rounds_took() -> None:
    prices = prices_of(*(a_round(gamma) for gamma in GAMMAS * 4), *[solo()] * 8)
    assert prices.forward(1) == pytest.approx(8000, rel=0.01)
    assert prices.forward(9) == pytest.approx(8000 * 1.24, rel=0.01)
    assert prices.asked(4) == pytest.approx(4 * 800 + 400, rel=0.02)
    assert prices.solo_us == 0
    assert prices.sessions == 1


def shared(gamma: int, batch: int, others_us: int) -> Observation:
    """A round of one of ``batch`` equal sessions; the others cost ``others_us``, and a row 200 us."""
    rows = batch * (gamma + 1)
    forward_us = 8000 + others_us + 200 * (rows - batch)
    return replace(a_round(gamma, batch=batch), batch_rows=rows, forward_us=forward_us, verify_us=forward_us)


def test_a_further_session_costs_something_else_than_a_further_row() -> None:
    prices = prices_of(*(shared(gamma, batch, 1500 * (batch - 1)) for batch in (1, 4, 2, 8, 3) for gamma in GAMMAS * 3))
    assert prices.forwards.session_us == pytest.approx([1500] * len(PRICED_FROM), rel=0.02)
    assert prices.forwards.row_us == pytest.approx(200, rel=0.02)
    assert prices.forward(24, 8) == pytest.approx(8000 + 1500 * 7 + 200 * 16, rel=0.01)


@pytest.mark.parametrize("sessions", [1, 2, 4, 7, 8])
def test_what_a_further_session_costs_hangs_on_how_many_there_are(sessions: int) -> None:
    """As measured on a processor: of many sessions a forward takes little more than of a few."""
    sessions_us = {1: 0, 2: 3000, 3: 5000, 4: 6500, 5: 7500, 6: 7900, 7: 8300, 8: 8600}
    batches = (4, 3, 5, 4, 1, 2, 4, 7, 6, 5)
    prices = prices_of(*(shared(gamma, batch, sessions_us[batch]) for batch in batches for gamma in GAMMAS * 2))
    expected = 8000 + sessions_us[sessions]
    assert prices.forward(sessions, sessions) == pytest.approx(expected, rel=0.06)


def crowd_of(sessions: int, token_us: int, num_rounds: int, costs: Costs) -> None:
    for number in range(num_rounds):
        for session in range(sessions):
            costs.observe(a_round(GAMMAS[number % 6], token_us=token_us, batch=sessions), session)


def test_a_crowd_forgets_by_rounds_not_by_verdicts() -> None:
    learned = []
    for sessions in (1, 8):
        costs = Costs()
        crowd_of(sessions, 800, 120, costs)
        crowd_of(sessions, 1600, 60, costs)
        prices = costs.now()
        assert prices is not None
        learned.append(prices.token_us)
    assert learned[1] == pytest.approx(learned[0], rel=0.05)
    assert learned[0] < 1500


def test_a_lone_session_forgets_by_its_own_rounds_whoever_shares_the_verifier() -> None:
    alone, shared_with_others = Costs(), Costs()
    for token_us, num_rounds in ((800, 120), (1600, 60)):
        for number in range(num_rounds):
            for costs, batch in ((alone, 1), (shared_with_others, 8)):
                costs.observe(a_round(GAMMAS[number % 6], token_us=token_us, batch=batch))
    prices, expected = shared_with_others.now(), alone.now()
    assert prices is not None
    assert expected is not None
    assert prices.token_us == pytest.approx(expected.token_us, rel=0.02)


def test_one_slow_forward_of_a_crowd_changes_little() -> None:
    costs = Costs()
    crowd_of(32, 800, 60, costs)
    before = costs.now()
    slow = a_round(4, batch=32)
    slow = replace(slow, **{name: 4 * getattr(slow, name) for name in ("verify_us", "forward_us", "round_us")})
    for session in range(32):
        costs.observe(slow, session)
    crowd_of(32, 800, 1, costs)
    after = costs.now()
    assert before is not None
    assert after is not None
    assert after.forward(96, 32) == pytest.approx(before.forward(96, 32), rel=0.1)


@pytest.mark.parametrize("odd", [0, 2**32 - 1])
def test_odd_times_are_got_over(odd: int) -> None:
    """A clock that jumped, or a service that tells nonsense, right at the start, when nothing is known yet."""
    strange = replace(a_round(), draft_us=odd, verify_us=odd, round_us=3 * odd, forward_us=odd)
    costs = Costs()
    prices_of(*[strange] * 4, *(a_round(gamma) for gamma in GAMMAS * 60), costs=costs)
    prices = prices_of(*(a_round(gamma) for gamma in GAMMAS * 60), costs=costs)
    assert prices.forward(5) == pytest.approx(8000 * 1.12, rel=0.1)
    assert prices.asked(4) == pytest.approx(4 * 800 + 400, rel=0.3)


def test_another_drafter_is_learned_within_a_few_hundred_rounds() -> None:
    costs = Costs()
    prices_of(*(a_round(gamma) for gamma in GAMMAS * 50), costs=costs)
    for token_us in (8000, 200):
        prices = prices_of(*(a_round(gamma, token_us=token_us) for gamma in GAMMAS * 50), costs=costs)
        assert prices.token_us == pytest.approx(token_us, rel=0.15)


def test_one_stall_changes_little() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 4]
    stalled = replace(a_round(4), verify_us=2_000_000, forward_us=2_000_000, round_us=2_100_000, draft_us=90_000)
    calm, shaken = prices_of(*rounds), prices_of(*rounds, stalled)
    assert shaken.forward(5) == pytest.approx(calm.forward(5), rel=0.1)
    assert shaken.asked(4) == pytest.approx(calm.asked(4), rel=0.2)


def test_what_waited_for_a_prefill_is_left_out() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 2]
    slow = replace(a_round(4), verify_us=500_000, forward_us=500_000, round_us=600_000)
    expected = prices_of(*rounds)
    assert prices_of(replace(slow, before=None, settled=False), *rounds) == expected
    assert prices_of(replace(slow, batch_rows=0), *rounds) == expected


def catching_up(more_us: int) -> Observation:
    """A round whose drafter had to read for so long."""
    seen = a_round(4)
    return replace(seen, settled=False, draft_us=seen.draft_us + more_us, round_us=seen.round_us + more_us)


def test_what_a_drafter_reads_before_it_drafts_has_a_price_of_its_own() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 2]
    prices = prices_of(*rounds, *[catching_up(3000)] * 4)
    assert prices.catch_up_us == pytest.approx(3000, rel=0.05)
    assert prices._replace(catch_up_us=0) == prices_of(*rounds)


def test_one_that_was_held_up_otherwise_is_no_measure_of_reading() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 2]
    prices = prices_of(*rounds, catching_up(900_000))
    assert prices.catch_up_us <= prices.forward(5)


def beside(us: int, *, warm: bool) -> Observation:
    """A solo token that takes so much besides its forward."""
    return replace(solo(), verify_us=solo().forward_us + us, warm=warm)


def test_a_token_beside_a_busy_drafter_is_priced_apart_from_one_of_the_target_alone() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 2]
    warm, quiet = [beside(1200, warm=True)] * 30, [beside(400, warm=False)] * 30
    for solos in ([*warm, *quiet], [*quiet, *warm]):
        prices = prices_of(*rounds, *solos)
        assert [prices.solo_us, prices.alone_us] == pytest.approx([1200, 400], rel=0.15)


def test_as_long_as_one_of_them_was_not_seen_it_is_priced_as_the_other() -> None:
    rounds = [a_round(gamma) for gamma in GAMMAS * 2]
    for warm in (True, False):
        prices = prices_of(*rounds, *[beside(700, warm=warm)] * 8)
        assert [prices.solo_us, prices.alone_us] == pytest.approx([700, 700])


def test_in_a_crowd_all_are_beside_each_others_drafts() -> None:
    costs = Costs()
    for session in (0, 1):
        for seen in (*(a_round(gamma) for gamma in GAMMAS * 2), beside(1200, warm=True), beside(400, warm=False)):
            costs.observe(seen, session)
    prices = costs.now()
    assert prices is not None
    assert prices.solo_us == prices.alone_us


def test_a_verifier_that_tells_nothing_of_its_forwards_is_taken_at_the_rounds_word() -> None:
    silent = [replace(a_round(gamma), batch_sessions=0, batch_rows=0, forward_us=0) for gamma in GAMMAS * 4]
    prices = prices_of(*silent)
    assert prices.forward(6) == pytest.approx(8000 * 1.15, rel=0.01)
    assert prices.sessions == 1


def test_sessions_are_counted_until_they_finish() -> None:
    costs = Costs()
    for session in range(5):
        for gamma in (2, 4, 6):
            costs.observe(a_round(gamma), session)
    prices = costs.now()
    assert prices is not None
    assert prices.sessions == 5
    costs.observe(replace(a_round(), finished=True), 0)
    costs.observe(replace(a_round(), finished=True), 1)
    prices = costs.now()
    assert prices is not None
    assert prices.sessions == 3


def test_sessions_of_other_gateways_are_seen_in_the_forwards() -> None:
    assert prices_of(*(a_round(gamma, batch=6) for gamma in GAMMAS * 2)).sessions == 6


def test_a_session_that_breaks_off_counts_no_more() -> None:
    costs = Costs()
    for session in range(40):
        costs.observe(a_round(GAMMAS[session % len(GAMMAS)]), session)
        costs.leave(session)
    costs.leave(39)
    prices = costs.now()
    assert prices is not None
    assert prices.sessions == 1


def test_sessions_that_fell_silent_are_forgotten() -> None:
    costs = Costs()
    for session in range(4):
        costs.observe(a_round(), session)
    for _ in range(1100):
        costs.observe(a_round(), 9)
    prices = costs.now()
    assert prices is not None
    assert prices.sessions == 1


def test_a_wait_is_told_from_the_forward_and_bounded() -> None:
    rounds = [a_round(gamma, batch=4) for gamma in GAMMAS * 4]
    waited = [replace(seen, verify_us=seen.verify_us + 2000, round_us=seen.round_us + 2000) for seen in rounds]
    late = [replace(seen, verify_us=seen.verify_us * 3, round_us=seen.round_us * 3) for seen in rounds]
    assert prices_of(*rounds).wait == 0
    assert 0 < prices_of(*waited).wait < MAX_WAIT
    assert prices_of(*late).wait == MAX_WAIT


def test_drafts_that_nobody_asked_for_tell_no_price_of_asking() -> None:
    costs = Costs()
    for _ in range(40):
        costs.observe(replace(a_round(4, token_us=0), ready=4))
    for _ in range(40):
        costs.observe(a_round(4))
    prices = costs.now(announced=True)
    assert prices is not None
    assert prices.there_us == pytest.approx(400, rel=0.1)
    assert prices.asked(4) == pytest.approx(4 * 800 + 400, rel=0.2)


def test_a_draft_takes_time_for_the_tokens_that_are_not_there() -> None:
    costs = Costs()
    for prepared in (0, 3, 1, 5, 2) * 8:
        # If some are there it was busy with another one.
        us = 600 + 900 * (5 - prepared) + (450 if 0 < prepared < 5 else 0)
        seen = a_round(5, token_us=0)
        costs.observe(replace(seen, prepared=prepared, draft_us=us, round_us=seen.round_us + us))
    prices = costs.now()
    assert prices is not None
    assert prices.draft_us == pytest.approx(600, rel=0.15)
    assert prices.token_us == pytest.approx(900, rel=0.1)
    assert prices.asked(4) == pytest.approx(600 + 4 * 900 + prices.overhead_us, rel=0.05)


STEP_US, LEAD_US, ROW_US = 2000, 7000, 240


def prepared_rounds(gamma: int, times: int = 40) -> list[Observation]:
    """Rounds of a machine whose drafter has a lead of 7 ms and takes 2 ms a token; one in four was not foreseen."""
    told = []
    for index in range(times):
        lead_us = LEAD_US + ROW_US * gamma + 500 * (index % 3 - 1) if index % 4 else 0
        us = max(STEP_US * gamma - lead_us, 0)
        seen = a_round(gamma, token_us=0)
        # With the step that was under way, since nobody is heard before it ends.
        prepared = min(-(-lead_us // STEP_US), gamma)
        told.append(
            replace(
                seen,
                previous_round=PreviousRound(gamma, True),
                prepared=prepared,
                ready=0 if us else gamma,
                draft_us=us,
                round_us=seen.round_us + us + (1000 if us else 0),
            )
        )
    return told


@pytest.mark.parametrize("tried", [2, 3, 4, 5, 7])
def test_of_one_gamma_it_is_known_what_the_lead_is_worth_for_others(tried: int) -> None:
    costs = Costs()
    for seen in [*(one for gamma in GAMMAS for one in prepared_rounds(gamma, 2)), *prepared_rounds(tried, 200)]:
        costs.observe(seen)
    prices = costs.now(announced=True)
    assert prices is not None
    if tried > 3:
        assert prices.begun(1) == pytest.approx(prices.there_us, abs=150)
        assert prices.begun(7) == pytest.approx(prices.overhead_us + 7 * (STEP_US - ROW_US) - LEAD_US, rel=0.15)
    # As far as is seen, there was time enough: more may be tried.
    assert prices.begun(tried) < prices.asked(tried) - 2000
    assert all(prices.begun(gamma) <= prices.begun(gamma + 1) for gamma in range(1, 8))


def test_a_short_draft_is_told_of_with_the_longest_that_is_prepared() -> None:
    costs = Costs()
    for gamma in GAMMAS:
        for seen in prepared_rounds(gamma):
            costs.observe(seen)
    prices = costs.now(announced=True)
    assert prices is not None
    assert prices.begun(1, 8) == pytest.approx(prices.overhead_us + STEP_US / 2, abs=200), "it is at one of the others"
    assert prices.begun(1, 8) > prices.begun(1, 1) + 500


def miss(gamma: int, held_up_us: int) -> Observation:
    """What is there is for another outcome; the forward for it that has begun takes so much longer."""
    seen = a_round(gamma)
    draft_us = seen.draft_us + held_up_us
    return replace(
        seen, previous_round=PreviousRound(gamma, False, gamma), draft_us=draft_us, round_us=seen.round_us + held_up_us
    )


@pytest.mark.parametrize(("tried", "other"), [(7, 1), (1, 7)])
def test_what_a_miss_waited_for_is_no_price_of_a_draft(tried: int, other: int) -> None:
    """While more is prepared than there is time for a miss waits for a step; while less is, for none."""
    costs, half_a_step_us = Costs(), 400
    for gamma in (*GAMMAS, *[tried] * 40):
        late_us = max(800 * gamma - 4000, 0)
        told = replace(a_round(gamma, token_us=0), previous_round=PreviousRound(gamma, True, gamma), prepared=gamma)
        ready = 0 if late_us else gamma
        costs.observe(replace(told, ready=ready, draft_us=late_us, round_us=told.round_us + late_us))
        costs.observe(miss(gamma, half_a_step_us if late_us else 0))
    prices = costs.now(announced=True)
    assert prices is not None
    difference_us = half_a_step_us if tried > other else -half_a_step_us
    assert prices.asked(3, tried) - prices.asked(3, other) == pytest.approx(difference_us, abs=200)
    took_us = miss(tried, half_a_step_us if tried > 5 else 0).draft_us
    assert prices.asked(tried, tried) == pytest.approx(took_us + prices.overhead_us, rel=0.1)


def test_where_nothing_is_prepared_nothing_is_waited_for() -> None:
    never = [a_round(gamma) for gamma in GAMMAS * 4]
    prices = prices_of(*never)
    assert prices.asked(3, 8) == prices.asked(3)
    # Nor after it was, for long.
    no_more = [miss(gamma, 0) for gamma in GAMMAS * 12]
    prices = prices_of(*(one for gamma in GAMMAS for one in prepared_rounds(gamma)), *no_more)
    assert prices.asked(3, 8) == prices.asked(3)


# Forwards by their number of rows.


def of_rows(gamma: int, forward_us: int) -> Observation:
    return replace(a_round(gamma), forward_us=forward_us, verify_us=forward_us)


def test_a_step_in_what_rows_cost_is_seen() -> None:
    """As measured on a processor."""
    took_us = {1: 8500, 2: 9200, 3: 10_700, 4: 11_100, 5: 11_900, 6: 12_300}
    prices = prices_of(*(of_rows(gamma, us) for gamma, us in list(took_us.items()) * 12 for _ in range(2)))
    for gamma, us in took_us.items():
        assert prices.forward(gamma + 1) == pytest.approx(us, rel=0.02)
    straight = prices._replace(forwards=prices.forwards._replace(ratios=()))
    assert straight.forward(3) > 1.02 * took_us[2]
    # Two kinds of rounds in turns take what each of them takes.
    mixed_us = (prices.forwards.lone_us(2) + prices.forwards.lone_us(4)) / 2
    assert prices.forward(3, lone_us=mixed_us) == pytest.approx((took_us[1] + took_us[3]) / 2, rel=0.02)


def test_many_sessions_rows_are_on_the_line() -> None:
    took_us = {1: 8500, 2: 9200, 3: 10_700, 4: 11_100}
    prices = prices_of(*(of_rows(gamma, us) for gamma, us in list(took_us.items()) * 12 for _ in range(2)))
    straight = prices._replace(forwards=prices.forwards._replace(ratios=()))
    assert prices.forward(6, 2) == straight.forward(6, 2)
    assert straight.forward(3, 1) != prices.forward(3, 1)
    assert prices.forward(4.5, 1.5) - straight.forward(4.5, 1.5) == pytest.approx(prices.forwards.lone_us(3) / 2)
    assert prices.forward(40) == straight.forward(40)


def test_what_is_not_announced_is_asked_for() -> None:
    costs = Costs()
    for gamma in GAMMAS:
        for seen in prepared_rounds(gamma):
            costs.observe(seen)
    prices, announced = costs.now(), costs.now(announced=True)
    assert prices is not None
    assert announced is not None
    assert prices.begun(1) == pytest.approx(prices.overhead_us, abs=50)
    assert prices.begun(1) > announced.begun(1) + 500


def test_what_lies_there_says_nothing_of_what_a_draft_takes() -> None:
    costs = Costs()
    for _ in range(40):
        costs.observe(a_round(3))
        costs.observe(replace(a_round(3, token_us=0), prepared=3, draft_us=50))
    prices = costs.now()
    assert prices is not None
    assert prices.asked(3) == pytest.approx(3 * 800 + prices.overhead_us, rel=0.05)


def test_where_all_is_announced_from_the_first_round_on_costs_are_known_all_the_same() -> None:
    costs = Costs()
    for _ in range(MIN_ROUNDS):
        costs.observe(replace(a_round(3, token_us=0), ready=3, prepared=3, previous_round=PreviousRound(3, True)))
    prices = costs.now(announced=True)
    assert prices is not None
    assert prices.there_us == pytest.approx(400, rel=0.1)
    assert prices.begun(3) == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize("gamma", [2, 5])
def test_where_nothing_is_announced_a_draft_that_lay_there_may_have_been_longer(gamma: int) -> None:
    costs, told = Costs(), Costs()
    for tried in GAMMAS:
        costs.observe(a_round(tried), announced=False)
        told.observe(a_round(tried))
    seen = replace(a_round(gamma, token_us=0), previous_round=PreviousRound(gamma, True), prepared=gamma, draft_us=50)
    for _ in range(200):
        costs.observe(seen, announced=False)
        told.observe(replace(seen, ready=gamma, draft_us=0))
    prices, expected = costs.now(), told.now(announced=True)
    assert prices is not None
    assert expected is not None
    assert prices.lead_us == pytest.approx(expected.lead_us, rel=0.02)
