"""Guesses that slow the target by more than they save are given up, but for a trial now and then."""

import random
from collections.abc import Callable

import pytest

from drafter_svc.run_ahead.payoff import FIRST_TRIAL, TRIAL_ROUNDS, Payoffs, Turns

FORWARD_S, DRAFT_S = 0.014, 0.004


class Machine:
    """Rounds by a clock of its own: guesses slow the forward, and save the next draft where they hit.

    Args:
        hit_rate: of guesses.
        slowed: how much longer a forward takes beside guesses, as a share.
    """

    def __init__(self, hit_rate: float, slowed: float) -> None:
        self.hit_rate, self.slowed = hit_rate, slowed
        self.now_s, self._rng, self._guessed = 0.0, random.Random(0), True
        self.payoffs = Payoffs(lambda: self.now_s)

    def run(self, turns: Turns, num_rounds: int, stalled: Callable[[int], bool] = lambda _: False) -> float:
        """Return in which share of rounds there were guesses."""
        num_guessed = 0
        for index in range(num_rounds):
            guesses = turns.next(4, 8)
            num_guessed += guesses
            hits = self._guessed and self._rng.random() < self.hit_rate
            self.now_s += (0.0 if hits else DRAFT_S) + FORWARD_S * (1 + self.slowed * guesses) + 5.0 * stalled(index)
            self._guessed = guesses
        return num_guessed / num_rounds


@pytest.mark.parametrize(
    ("hit_rate", "slowed", "least", "most"),
    [(0.9, 0.0, 0.95, 1.0), (0.9, 0.1, 0.9, 1.0), (0.26, 0.3, 0.0, 0.1), (0.0, 0.2, 0.0, 0.1)],
)
def test_it_is_done_where_rounds_take_less_time(hit_rate: float, slowed: float, least: float, most: float) -> None:
    machine = Machine(hit_rate, slowed)
    turns = Turns(machine.payoffs)
    assert machine.run(turns, FIRST_TRIAL - 1) == 1.0
    machine.run(turns, 100)
    assert least <= machine.run(turns, 1000) <= most
    assert machine.run(turns, 1000) not in {0.0, 1.0}, "it is not tried again"
    one_trial = TRIAL_ROUNDS / FIRST_TRIAL
    assert least - one_trial <= machine.run(Turns(machine.payoffs), FIRST_TRIAL) <= most + one_trial, "not shared"


def test_it_comes_back_when_it_pays_again() -> None:
    machine = Machine(0.0, 0.3)
    turns = Turns(machine.payoffs)
    assert machine.run(turns, 400) < 0.3
    machine.hit_rate, machine.slowed = 0.9, 0.0
    machine.run(turns, 1500)
    assert machine.run(turns, 400) > 0.9


def test_rounds_that_stall_say_nothing_of_guesses() -> None:
    machine = Machine(0.9, 0.0)
    assert machine.run(Turns(machine.payoffs), 1000, lambda index: index % 100 == 50) > 0.9


def test_a_round_after_solo_tokens_is_not_timed() -> None:
    machine = Machine(0.9, 0.0)
    turns = Turns(machine.payoffs)
    for index in range(400):
        if index % 3 == 0:
            machine.now_s += FORWARD_S * 40 * turns.next(4, 8)
            turns.interrupt()
        else:
            machine.run(turns, 1)
    assert machine.run(turns, 400) > 0.9
