"""What rounds are known to cost: as clean ones say, whatever else is told between them."""

from dataclasses import replace

import pytest

from orchestrator.policy.auto.costs import MAX_WAIT, MIN_ROUNDS
from orchestrator.policy.auto.history import MOST_TOKENS
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.observation import Observation, PreviousRound
from orchestrator.policy.auto.prices import Prices
from tests.orchestrator.policy.auto.support import GAMMAS, MODE, REQUEST, a_round, solo, taught

ROUNDS = [a_round(gamma) for gamma in GAMMAS * 4]


def prices_in(learner: Learner) -> Prices:
    prices = learner.costs.now(announced=True)
    assert prices is not None
    return prices


def prices_of(*seen: Observation) -> Prices:
    return prices_in(taught(*seen))


def longer(seen: Observation, factor: int) -> Observation:
    """Return a round that stalled."""
    return replace(seen, **{name: factor * getattr(seen, name) for name in ("verify_us", "forward_us", "round_us")})


def test_nothing_is_known_before_there_were_rounds() -> None:
    learner = taught(*ROUNDS[: MIN_ROUNDS - 1], solo())
    assert learner.costs.now() is None
    assert taught(a_round(), learner=learner).costs.now() is not None


def test_prices_are_what_rounds_took() -> None:
    # Of another gate's request a round may be longer than any that is chosen.
    rounds = [*ROUNDS, a_round(40)]
    silent = [replace(seen, batch_sessions=0, batch_rows=0, forward_us=0) for seen in rounds]
    # A verifier that tells nothing of its forwards is taken at the round's word.
    for told in (rounds, silent):
        prices = prices_of(*told, *[solo()] * 8)
        assert prices.forward(1) == pytest.approx(8000, rel=0.01)
        assert prices.forward(9) == pytest.approx(8000 * 1.24, rel=0.01)
        assert prices.asked(4) == pytest.approx(4 * 800 + 400, rel=0.02)
        assert (prices.solo_us, prices.sessions) == (0, 1)


LONG, ENDLESS = longer(a_round(4), 50), 2**32 - 1
ODD = {
    # A clock that jumped, or a service that tells nonsense.
    "nothing": replace(a_round(), draft_us=0, verify_us=0, round_us=0, forward_us=0),
    "endless": replace(a_round(), draft_us=ENDLESS, verify_us=ENDLESS, round_us=3 * ENDLESS, forward_us=ENDLESS),
    "stall": LONG,
    "first_round": replace(LONG, before=None, settled=False),
    "beside_a_prefill": replace(LONG, batch_rows=0),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("before", "times", "after"), [(0, 4, 20), (4, 1, 0)], ids=["at_first", "later"])
@pytest.mark.parametrize("sessions", [1, 8])
def test_what_is_no_measure_is_got_over(odd: Observation, before: int, times: int, after: int, sessions: int) -> None:
    learner = taught(*ROUNDS * before, sessions=sessions)
    taught(*[odd] * times, *ROUNDS * after, learner=learner)
    prices = prices_in(learner)
    assert prices.forward(5) == pytest.approx(8000 * 1.12, rel=0.1)
    assert prices.asked(4) == pytest.approx(4 * 800 + 400, rel=0.3)


def test_what_waited_for_a_prefill_is_left_out() -> None:
    for odd in (ODD["first_round"], ODD["beside_a_prefill"]):
        assert prices_of(*ROUNDS, *[odd] * 40) == prices_of(*ROUNDS)


@pytest.mark.parametrize("token_us", [8000, 200])
@pytest.mark.parametrize("sessions", [1, 8])
def test_another_drafter_is_learned_within_some_hundred_rounds_of_each_session(token_us: int, sessions: int) -> None:
    """A crowd forgets by rounds, not by verdicts."""
    learner = taught(*[a_round(gamma, batch=sessions) for gamma in GAMMAS * 30], sessions=sessions)
    learned = []
    for times in (5, 45):
        told = [a_round(gamma, token_us=token_us, batch=sessions) for gamma in GAMMAS * times]
        learned.append(prices_in(taught(*told, learner=learner, sessions=sessions)).token_us)
    assert learned[1] == pytest.approx(token_us, rel=0.15)
    assert abs(learned[0] - token_us) > 0.3 * abs(800 - token_us)


def test_a_further_session_costs_something_else_than_a_further_row() -> None:
    """As measured on a processor: of many sessions a forward takes little more than of a few."""
    sessions_us = {1: 0, 2: 3000, 3: 5000, 4: 6500, 5: 7500, 6: 7900, 7: 8300, 8: 8600}
    told = []
    for batch in (4, 3, 5, 4, 1, 2, 4, 7, 6, 5):
        for gamma in GAMMAS * 2:
            us = 8000 + sessions_us[batch] + 200 * batch * gamma
            told.append(replace(a_round(gamma, batch=batch), forward_us=us, verify_us=us))
    prices = prices_of(*told)
    for sessions in (1, 2, 4, 7, 8):
        expected = 8000 + sessions_us[sessions]
        assert prices.forward(sessions, sessions) == pytest.approx(expected, rel=0.06)
    assert prices.forwards.row_us == pytest.approx(200, rel=0.1)


def test_a_step_in_what_a_lone_sessions_rows_cost_is_seen() -> None:
    took_us = {1: 8500, 2: 9200, 3: 10_700, 4: 11_100, 5: 11_900, 6: 12_300}
    told = [replace(a_round(gamma), forward_us=us, verify_us=us) for gamma, us in took_us.items() for _ in range(2)]
    # One that is far off has no part in the shape.
    prices = prices_of(*told * 12, longer(a_round(3), 400), *told * 4)
    for gamma, us in took_us.items():
        assert prices.forward(gamma + 1) == pytest.approx(us, rel=0.02)
    # Many sessions' rows are on a line, which is right on average only.
    assert prices.forward(6, 2) == prices._replace(forwards=prices.forwards._replace(ratios=())).forward(6, 2)


def test_what_a_drafter_reads_before_it_drafts_has_a_price_of_its_own() -> None:
    seen = a_round(4)
    for more_us, priced_us in ((3000, 3000), (900_000, 9000)):
        reading = replace(seen, settled=False, draft_us=seen.draft_us + more_us, round_us=seen.round_us + more_us)
        prices = prices_of(*ROUNDS, *[reading] * 4)
        # One that was held up otherwise is no measure of reading.
        assert prices.catch_up_us == pytest.approx(priced_us, rel=0.05)
        assert prices._replace(catch_up_us=0) == prices_of(*ROUNDS)


def test_a_token_beside_a_busy_drafter_is_priced_apart_from_one_of_the_target_alone() -> None:
    warm, quiet = ([replace(solo(), verify_us=8000 + us, warm=us > 500)] * 30 for us in (1200, 400))
    for told in ([*warm, *quiet], [*quiet, *warm]):
        prices = prices_of(*ROUNDS, *told)
        assert [prices.solo_us, prices.alone_us] == pytest.approx([1200, 400], rel=0.15)
    # In a crowd all are beside each other's drafts.
    prices = prices_in(taught(*ROUNDS, *warm, *quiet, sessions=2))
    assert prices.solo_us == prices.alone_us


def test_sessions_are_counted_while_they_are_heard_of() -> None:
    learner = taught(*ROUNDS, sessions=5)
    assert prices_in(learner).sessions == 5
    taught(replace(a_round(), finished=True), learner=learner)
    assert prices_in(learner).sessions == 5, "that was another one"
    taught(*[a_round()] * 1100, learner=learner)
    assert prices_in(learner).sessions == 1, "the others fell silent"
    taught(a_round(batch=9), learner=learner)
    assert prices_in(learner).sessions == 9, "as many shared a forward, those of other gateways too"


def test_sessions_that_break_off_count_no_more_and_leave_nothing_behind() -> None:
    learner = Learner()
    for _ in range(2000):
        observer = learner.observer(REQUEST)
        assert observer is not None
        observer(a_round())
        observer.leave()
        observer.leave()
    assert prices_in(learner).sessions == 1
    assert len(learner.knowledge(MODE).history.text().runs) <= MOST_TOKENS


def test_a_wait_is_told_from_the_forward_and_bounded() -> None:
    told = [a_round(gamma, batch=4) for gamma in GAMMAS * 4]
    waited = [replace(seen, verify_us=seen.verify_us + 2000, round_us=seen.round_us + 2000) for seen in told]
    late = [replace(seen, verify_us=seen.verify_us * 3, round_us=seen.round_us * 3) for seen in told]
    assert prices_of(*told).wait == 0
    assert 0 < prices_of(*waited).wait < MAX_WAIT
    assert prices_of(*late).wait == MAX_WAIT


# Prepared drafts.

STEP_US, LEAD_US, ROW_US = 2000, 7000, 240


def prepared_rounds(gamma: int, times: int) -> list[Observation]:
    """Rounds of a machine whose drafter has a lead of 7 ms and takes 2 ms a token; one in four was not foreseen."""
    told = []
    for index in range(times):
        lead_us = LEAD_US + ROW_US * gamma + 500 * (index % 3 - 1) if index % 4 else 0
        us = max(STEP_US * gamma - lead_us, 0)
        seen = a_round(gamma, token_us=0)
        told.append(
            replace(
                seen,
                previous_round=PreviousRound(gamma, True),
                # With the step that was under way, since nobody is heard before it ends.
                prepared=min(-(-lead_us // STEP_US), gamma),
                ready=0 if us else gamma,
                draft_us=us,
                round_us=seen.round_us + us + (1000 if us else 0),
            )
        )
    return told


@pytest.mark.parametrize("tried", [4, 5, 7])
def test_of_one_gamma_it_is_known_what_the_lead_is_worth_for_others(tried: int) -> None:
    learner = taught(*(one for gamma in GAMMAS for one in prepared_rounds(gamma, 2)), *prepared_rounds(tried, 200))
    prices = prices_in(learner)
    assert prices.begun(1) == pytest.approx(prices.there_us, abs=150)
    assert prices.begun(7) == pytest.approx(prices.overhead_us + 7 * (STEP_US - ROW_US) - LEAD_US, rel=0.15)
    assert all(prices.begun(gamma) <= prices.begun(gamma + 1) for gamma in range(1, 8))
    # A short one is told of with the longest that is prepared: the drafter is at one of the others.
    assert prices.begun(1, 8) == pytest.approx(prices.overhead_us + STEP_US / 2, abs=300)
    # What is not announced is asked for; what is prepared in vain is waited for, but not once nothing is any more.
    unannounced = learner.costs.now()
    assert unannounced is not None
    assert unannounced.begun(1) == pytest.approx(prices.overhead_us, abs=50)
    assert prices.asked(3, 8) > prices.asked(3, 1) + 200
    no_more = [replace(a_round(gamma), previous_round=PreviousRound(gamma, False, gamma)) for gamma in GAMMAS * 24]
    prices = prices_in(taught(*no_more, learner=learner))
    assert prices.asked(3, 8) == prices.asked(3)


def test_what_lies_there_says_nothing_of_what_a_draft_takes() -> None:
    for there in (
        replace(a_round(3, token_us=0), prepared=3, ready=3),
        replace(a_round(3, token_us=0), prepared=3, draft_us=50),
    ):
        prices = prices_of(*[a_round(3), there] * 40)
        assert prices.asked(3) == pytest.approx(3 * 800 + prices.overhead_us, rel=0.2)
    # Where all is announced from the first round on costs are known all the same.
    assert prices_of(*[replace(there, ready=3, draft_us=0)] * MIN_ROUNDS).there_us == pytest.approx(400, rel=0.1)
