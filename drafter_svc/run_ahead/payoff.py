"""Whether guessing pays, by the clock: a hit saves a draft, but on shared cores or memory guesses slow the target.

Rounds with guesses and rounds without are timed side by side. Which kind is dearer is tried again now and then, so
seldom that it costs next to nothing.
"""

import time
from collections import defaultdict
from collections.abc import Callable

_FORGET = 0.998
"""What a round counts after the next one of either kind, so that both means are of the same minutes."""
MOST_OFF = 4.0
"""A round counts as at most so many times the mean: one that stalled says nothing of guesses."""
FIRST_TRIAL = 16
"""Rounds with guesses before the first trial without."""
TRIAL_ROUNDS = 3
"""Rounds of one trial. The first has something of both kinds, and is not counted."""
TRIED = 0.005
"""Share of the time that trials may lose."""


class Payoff:
    """How long rounds of one form take, with guesses and without. All sessions of a mode learn together."""

    def __init__(self) -> None:
        self._sums = {True: (0.0, 0.0), False: (0.0, 0.0)}
        """Of rounds with guesses and without: how many, and their seconds."""
        self._until_trial = FIRST_TRIAL

    def learn(self, round_s: float, *, guessed: bool) -> None:
        """Count a round."""
        mean_s = self._mean_s(guessed)
        self._sums = {kind: (_FORGET * rounds, _FORGET * s) for kind, (rounds, s) in self._sums.items()}
        rounds, seconds = self._sums[guessed]
        self._sums[guessed] = rounds + 1, seconds + min(round_s, MOST_OFF * (mean_s or round_s))

    @property
    def pays(self) -> bool:
        """Whether rounds with guesses take less time, as far as is known."""
        return self._loss <= 0

    def begins_trial(self) -> bool:
        """Count a round; return whether a trial of the kind that does not pay begins with it."""
        self._until_trial -= 1
        if self._until_trial > 0:
            return False
        self._until_trial = max(FIRST_TRIAL, round(TRIAL_ROUNDS * abs(self._loss) / TRIED))
        return True

    @property
    def _loss(self) -> float:
        """What guesses cost, as a share of a round; 0 before both kinds were seen."""
        guessed_s, unguessed_s = self._mean_s(True), self._mean_s(False)
        return (guessed_s - unguessed_s) / min(guessed_s, unguessed_s) if guessed_s and unguessed_s else 0.0

    def _mean_s(self, guessed: bool) -> float:
        rounds, seconds = self._sums[guessed]
        return seconds / rounds if rounds else 0.0


class Payoffs:
    """By γ and by the rows that a session may guess with.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.of: dict[tuple[int, int], Payoff] = defaultdict(Payoff)


class Turns:
    """One session's rounds: times them, and says in which ones guesses are made. Lives on the engine's thread."""

    def __init__(self, payoffs: Payoffs) -> None:
        self._payoffs = payoffs
        self._payoff: Payoff | None = None
        self._began_s = 0.0
        self._guesses = True
        self._is_settled = False
        """Whether the last round and the one before it were of the same kind."""
        self._trial_left = 0

    def interrupt(self) -> None:
        """What comes next is no round as others are: the target went on alone."""
        self._payoff = None

    def next(self, gamma: int, num_rows: int) -> bool:
        """Begin a round of ``gamma`` draft tokens; return whether to guess in it."""
        now_s, payoff = self._payoffs.clock(), self._payoffs.of[gamma, num_rows]
        if payoff is not self._payoff:
            self._is_settled = False
        elif self._is_settled:
            payoff.learn(now_s - self._began_s, guessed=self._guesses)
        guesses = self._choose(payoff)
        self._is_settled = payoff is self._payoff and guesses == self._guesses
        self._payoff, self._began_s, self._guesses = payoff, now_s, guesses
        return guesses

    def _choose(self, payoff: Payoff) -> bool:
        if self._trial_left:
            self._trial_left -= 1
            return self._guesses
        if payoff.begins_trial():
            self._trial_left = TRIAL_ROUNDS - 1
            return not payoff.pays
        return payoff.pays
