"""Guesses that slow the target by more than they save are given up, but for a trial now and then."""

import random
from collections.abc import Collection

import pytest

from drafter_svc.run_ahead.learned import TRIAL_EVERY, Payoff
from drafter_svc.run_ahead.turns import Turns

FORWARD_S, DRAFT_S = 0.014, 0.004
STALL_S = 5.0


class Machine:
    """Rounds by a clock of its own. Guesses slow the forward; where they hit they save both of the next two drafts.

    Args:
        hit_rate: of guesses.
        slowed: how much longer a forward takes beside guesses, as a share.
    """

    def __init__(self, hit_rate: float, slowed: float) -> None:
        self.hit_rate, self.slowed, self.now_s, self.payoff = hit_rate, slowed, 0.0, Payoff()
        self._rng, self._guessed = random.Random(0), [False, False]

    def new_turns(self) -> Turns:
        return Turns(self.payoff, lambda: self.now_s)

    def run(self, turns: Turns, num_rounds: int, stalled: Collection[int] = (), gamma: int = 4) -> float:
        """Return in which share of rounds there were guesses."""
        num_guessed = 0
        for index in range(num_rounds):
            turns.next(gamma, 8)
            hits = any(self._guessed) and self._rng.random() < self.hit_rate
            self.now_s += FORWARD_S * (1 + self.slowed * turns.guesses) + DRAFT_S * (not hits)
            self.now_s += STALL_S * (index in stalled)
            self._guessed = [turns.guesses, self._guessed[0]]
            num_guessed += turns.guesses
        return num_guessed / num_rounds


@pytest.mark.parametrize(
    ("hit_rate", "slowed", "pays"),
    [(0.9, 0.0, True), (0.9, 0.18, True), (0.9, 0.4, False), (0.26, 0.3, False), (0.0, 0.2, False)],
)
def test_it_is_done_where_rounds_take_less_time(hit_rate: float, slowed: float, pays: bool) -> None:
    machine = Machine(hit_rate, slowed)
    turns = machine.new_turns()
    assert machine.run(turns, TRIAL_EVERY) == 1.0
    machine.run(turns, 300)
    share = machine.run(turns, 1000)
    assert 0.85 < share < 1.0 if pays else 0.0 < share < 0.15, "it is tried again, and seldom"
    assert machine.run(machine.new_turns(), 4) == pays, "other sessions know"


def test_it_comes_back_when_it_pays_again() -> None:
    machine = Machine(0.0, 0.3)
    turns = machine.new_turns()
    assert machine.run(turns, 400) < 0.3
    machine.hit_rate, machine.slowed = 0.9, 0.0
    machine.run(turns, 3000)
    assert machine.run(turns, 400) > 0.9


@pytest.mark.parametrize("stalled", [{1}, {3}, {10}, {20, 22, 23}, range(50, 1000, 100)])
def test_rounds_that_stall_decide_nothing(stalled: Collection[int]) -> None:
    machine = Machine(0.9, 0.0)
    turns = machine.new_turns()
    machine.run(turns, 1000, stalled)
    assert machine.run(turns, 400) > 0.9


def test_rounds_of_another_length_are_not_compared() -> None:
    machine = Machine(0.9, 0.0)
    turns = machine.new_turns()
    for gamma in (1, 9) * 30:
        turns.next(gamma, 8)
        machine.now_s += gamma
    assert not machine.payoff.is_trial_due
    assert turns.guesses


def test_where_sessions_end_before_a_trial_does_trials_grow_rare() -> None:
    machine = Machine(0.9, 0.0)
    shares = [machine.run(machine.new_turns(), TRIAL_EVERY) for _ in range(100)]
    assert min(shares) < 1.0
    assert sum(share < 1.0 for share in shares) < 10
