"""Guessing that loses more forwards than it saves is given up, but for a trial now and then."""

import pytest

from drafter_svc.run_ahead.payoff import TRIAL, Payoff


def share_of_rounds(account: Payoff, num_rounds: int = 8 * TRIAL) -> float:
    return sum(account.pays() for _ in range(num_rounds)) / num_rounds


@pytest.mark.parametrize("num_misses", [0, 1000])
def test_it_is_tried_first_and_misses_that_nobody_waited_for_cost_nothing(num_misses: int) -> None:
    account = Payoff()
    for _ in range(num_misses):
        account.enter(saved=0, waited=False)
    assert share_of_rounds(account) == 1.0


@pytest.mark.parametrize(("hits_in_ten", "share"), [(0, 1 / TRIAL), (1, 1 / TRIAL), (4, 1.0), (8, 1.0)])
def test_a_hit_saves_what_was_drafted_and_a_miss_waits_for_one(hits_in_ten: int, share: float) -> None:
    """Of drafts of three tokens one in four must hit."""
    account = Payoff()
    for index in range(200):
        hit = index % 10 < hits_in_ten
        account.enter(saved=3 * hit, waited=not hit)
        if hits_in_ten >= 4 and index % 10 == hits_in_ten - 1:
            assert account.pays()
    assert share_of_rounds(account) == pytest.approx(share)


def test_it_comes_back_when_it_pays_again() -> None:
    account = Payoff()
    for _ in range(100):
        account.enter(saved=0, waited=True)
    assert not account.pays()
    for _ in range(8):
        account.enter(saved=5, waited=False)
    assert share_of_rounds(account) == 1.0
