"""What a draft brings is what its rounds and their forwards say."""

import pytest

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.types import ForwardCost
from specgate_lab.train.gain import Gain, share_of, tokens_at, tokens_of

COSTS = MeasuredCosts([ForwardCost(1, 1000), ForwardCost(9, 1000)], [ForwardCost(1, 100)])


def test_the_best_gamma_is_the_one_whose_tokens_are_worth_their_time() -> None:
    assert Gain.of(COSTS, lambda gamma: gamma + 1) == Gain(9 / 1.8, 8)
    assert Gain.of(COSTS, lambda gamma: min(gamma, 2) + 1) == Gain(3 / 1.2, 2)
    assert share_of(COSTS) == pytest.approx(0.1)


def test_tokens_of_a_round() -> None:
    assert tokens_at(0.5)(2) == 1.75
    # Rounds of γ 2: accepted 2 and the target's own, then 0 and its own, then 1 and its own.
    assert tokens_of([[True, True, False], [False, True, False]])(2) == 2.0
    assert tokens_of([[True] * 9])(2) == 3.0
