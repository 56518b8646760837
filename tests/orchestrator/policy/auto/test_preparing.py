"""What a drafter that works ahead has done when it is asked: the formula against counting."""

import math

import pytest

from orchestrator.policy.auto.preparing import Preparing

TOKEN_US, ROW_US, LEAD_US, JITTER_US = 2000.0, 200.0, 5000.0, 500.0
PREPARING = Preparing(TOKEN_US, ROW_US, LEAD_US, JITTER_US)


def held_up(preparing: Preparing, gamma: int, longest: int) -> float:
    """Return the mean over leads that are as likely as a logistic law has it."""
    num = 20_000
    total_us = 0.0
    for index in range(num):
        share = (index + 0.5) / num
        lead_us = preparing.lead_us + ROW_US * longest + JITTER_US * math.log(share / (1 - share))
        ends = [preparing.token_us * num_tokens for num_tokens in range(gamma, longest + 1)]
        # Until gamma tokens are there; or, if they are, until the one ends that is under way.
        is_begun = gamma or lead_us > 0
        total_us += next((end_us - lead_us for end_us in ends if end_us > lead_us), 0.0) if is_begun else 0.0
    return total_us / num


@pytest.mark.parametrize(("gamma", "longest"), [(1, 1), (2, 2), (3, 3), (6, 6), (0, 3), (2, 3), (1, 8), (0, 8)])
@pytest.mark.parametrize(
    "preparing", [PREPARING, PREPARING._replace(lead_us=-1000.0), PREPARING._replace(token_us=9000.0)]
)
def test_how_long_a_round_is_held_up(preparing: Preparing, gamma: int, longest: int) -> None:
    expected = held_up(preparing, gamma, longest)
    assert preparing.held_up(gamma, longest) == pytest.approx(expected, rel=0.01, abs=2)


def test_what_is_not_begun_holds_nobody_up() -> None:
    assert PREPARING.held_up(0, 0) == pytest.approx(0, abs=1)
    assert PREPARING._replace(lead_us=-90_000.0).held_up(0, 4) == pytest.approx(0, abs=1)


def test_long_ago_or_never() -> None:
    """Exponentials have their limits."""
    assert PREPARING._replace(lead_us=1e9).held_up(4, 8) == pytest.approx(0, abs=1)
    assert PREPARING._replace(jitter_us=1.0).is_busy(8, 8) == pytest.approx(1)
    assert PREPARING._replace(jitter_us=1.0).is_busy(1, 1) == pytest.approx(0)
