"""In which rounds of a session guesses are made. The clock decides.

A hit saves a draft, but where cores, caches or memory are shared, guesses slow the target. So rounds with guesses and
rounds without are timed, next to each other on the same text.
"""

from collections import deque
from collections.abc import Callable
from statistics import mean

from drafter_svc.run_ahead.learned import TRIAL_ROUNDS, Payoff

UNTIMED = 2
"""Rounds after a change that have something of both ways: two rounds are prepared ahead."""
_LEAST_BEFORE, _MOST_BEFORE = 4, 8
"""Rounds that a trial is compared with: those right before it."""
_MOST_OFF = 2.0
"""A round counts as at most so many times the mean before it: one that stalled says nothing of guesses."""


class Turns:
    """Times a session's rounds, and says of each whether to guess in it. Lives on the engine's thread.

    Args:
        clock: seconds.
    """

    def __init__(self, payoff: Payoff, clock: Callable[[], float]) -> None:
        self.guesses = payoff.pays
        """Whether to guess in the round that goes on."""
        self._payoff = payoff
        self._clock = clock
        self._form: tuple[int, int] | None = None
        self._began_s: float | None = None
        """When the round that goes on began; None: it is not timed."""
        self._alike = 0
        """So many rounds of this form, with the one that goes on, were all guessed in, or all not."""
        self._before: deque[float] = deque(maxlen=_MOST_BEFORE)
        self._trial: list[float] | None = None

    def interrupt(self) -> None:
        """Do not time the round that goes on: the target decoded alone after it."""
        self._began_s = None

    def next(self, gamma: int, num_rows: int) -> None:
        """Begin a round of ``gamma`` draft tokens, before which ``num_rows`` outcomes could be guessed."""
        now_s, form = self._clock(), (gamma, num_rows)
        if form != self._form:
            self._form, self._alike, self._trial = form, 0, None
            self._before.clear()
        elif self._began_s is not None and self._alike > UNTIMED:
            self._time(now_s - self._began_s)
        self._began_s = now_s
        self._choose()

    def _time(self, round_s: float) -> None:
        if self._before:
            round_s = min(round_s, _MOST_OFF * mean(self._before))
        if self._trial is None:
            self._before.append(round_s)
            self._payoff.count_round()
            return
        self._trial.append(round_s)
        if len(self._trial) == TRIAL_ROUNDS - UNTIMED:
            tried_s, before_s = mean(self._trial), mean(self._before)
            self._payoff.learn(tried_s / before_s - 1 if self.guesses else before_s / tried_s - 1)
            self._trial = None

    def _choose(self) -> None:
        guesses = self.guesses if self._trial is not None else self._payoff.pays
        if self._trial is None and len(self._before) >= _LEAST_BEFORE and self._payoff.is_trial_due:
            self._payoff.begin_trial()
            self._trial, guesses = [], not guesses
        if guesses != self.guesses:
            self._alike = 0
            if self._trial is None:
                self._before.clear()
        self.guesses = guesses
        self._alike += 1
