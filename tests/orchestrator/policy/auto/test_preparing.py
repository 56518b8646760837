"""For how long a drafter that works ahead holds a round up: the formula against counting."""

import math

import pytest

from orchestrator.policy.auto.preparing import Preparing

ROW_US, JITTER_US = 200.0, 500.0


def held_up(preparing: Preparing, gamma: int, longest: int) -> float:
    """Return the mean over leads that are as likely as a logistic law has it."""
    num, total_us = 20_000, 0.0
    for index in range(num):
        share = (index + 0.5) / num
        lead_us = preparing.lead_us + ROW_US * longest + JITTER_US * math.log(share / (1 - share))
        ends = [preparing.token_us * num_tokens for num_tokens in range(gamma, longest + 1)]
        # Until gamma tokens are there; or, if they are, until the one ends that is under way.
        is_begun = gamma or lead_us > 0
        total_us += next((end_us - lead_us for end_us in ends if end_us > lead_us), 0.0) if is_begun else 0.0
    return total_us / num


@pytest.mark.parametrize(("gamma", "longest"), [(0, 0), (1, 1), (6, 6), (0, 3), (2, 3), (1, 8), (0, 8)])
@pytest.mark.parametrize(("token_us", "lead_us"), [(2000.0, 5000.0), (2000.0, -1000.0), (9000.0, 5000.0)])
def test_how_long_a_round_is_held_up(token_us: float, lead_us: float, gamma: int, longest: int) -> None:
    preparing = Preparing(token_us, ROW_US, lead_us, JITTER_US)
    assert preparing.held_up(gamma, longest) == pytest.approx(held_up(preparing, gamma, longest), rel=0.01, abs=2)
    # Long ago or never: exponentials have their limits.
    assert preparing._replace(lead_us=1e9).held_up(gamma, longest) == pytest.approx(0, abs=1)
