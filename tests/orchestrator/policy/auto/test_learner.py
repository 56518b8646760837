"""How long the target goes on alone before it comes back to ask."""

from dataclasses import replace

import pytest

from orchestrator.policy.auto.choice import MAX_SOLO_TOKENS
from orchestrator.policy.auto.learner import FIRST_ROUND_TRIP_SHARE, MIN_SOLO_TOKENS, ROUND_TRIP_SHARE, Learner
from tests.orchestrator.policy.auto.support import GAMMAS, MODE, a_round, taught


def learner_at(trip_us: int, num_rounds: int) -> Learner:
    """One that has seen rounds in which so much went by on the way."""
    seen = [a_round(gamma, 0) for gamma in GAMMAS * (num_rounds // len(GAMMAS))]
    learner = taught(*(replace(one, round_us=one.round_us + trip_us) for one in seen))
    learner.table(MODE, 8)
    return learner


def share_of_trip(learner: Learner, num_tokens: int) -> float:
    """Return what coming back to ask takes, as a share of so many solo tokens."""
    prices = learner.costs.now()
    assert prices is not None
    return (prices.overhead_us / (prices.forward(1) + prices.solo_us) + prices.wait) / num_tokens


def test_while_no_cost_is_known_it_is_short() -> None:
    assert Learner().solo_run() == MIN_SOLO_TOKENS


def test_coming_back_takes_a_small_share() -> None:
    learner = learner_at(trip_us=3600, num_rounds=1200)
    assert MIN_SOLO_TOKENS < learner.solo_run() < MAX_SOLO_TOKENS
    assert share_of_trip(learner, learner.solo_run()) == pytest.approx(ROUND_TRIP_SHARE, rel=0.03)


def test_it_is_shorter_while_little_is_known() -> None:
    learner = learner_at(trip_us=3600, num_rounds=60)
    assert share_of_trip(learner, learner.solo_run()) == pytest.approx(FIRST_ROUND_TRIP_SHARE, rel=0.03)


def test_a_near_drafter_is_asked_soon() -> None:
    assert learner_at(trip_us=0, num_rounds=1200).solo_run() == MIN_SOLO_TOKENS


def test_however_far_it_is_there_is_an_end() -> None:
    assert learner_at(trip_us=1_000_000, num_rounds=1200).solo_run() == MAX_SOLO_TOKENS
