"""What drafts are worth: how often they are accepted, how long a step takes, and how long waiting pays."""

import math
from collections.abc import Sequence

FIRST_RATE, MIN_RATE, MAX_RATE = 0.7, 0.01, 0.98
PRIOR_TOKENS = 4.0
"""Tokens of a request that must be judged before its own acceptance counts as much as the others'."""
FORGET_TOKENS, FORGET_STEPS = 0.95, 0.99
WARM_UP = 4
"""Steps that are not counted: some are slow because they are the first."""
MOST_OFF = 4.0
"""A step counts as at most so many times what was expected."""
FIRST_WAIT_S = 0.05
"""How long a draft may take while the time of a step is unknown."""
FIRST_TRIAL, LAST_TRIAL = 8, 128
"""Steps until a trial of what is not done otherwise; the number doubles with each trial."""
PROBE = 2
"""Draft tokens of a trial where drafts do not pay."""
MIN_SPREAD = 0.05
"""Where the widths of the last steps differ by less, what a row costs is unknown."""


class Acceptance:
    """The chance that a draft token is accepted, of one request; ``others`` is that of all."""

    def __init__(self, others: "Acceptance | None" = None) -> None:
        self._others = others
        self._judged = self._accepted = 0.0

    @property
    def rate(self) -> float:
        prior = self._others.rate if self._others is not None else FIRST_RATE
        rate = (self._accepted + PRIOR_TOKENS * prior) / (self._judged + PRIOR_TOKENS)
        return min(max(rate, MIN_RATE), MAX_RATE)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Count a verified draft; without one, what was learned fades."""
        self._judged = FORGET_TOKENS * self._judged + min(num_accepted + 1, num_drafted)
        self._accepted = FORGET_TOKENS * self._accepted + min(num_accepted, num_drafted)
        if self._others is not None and num_drafted:
            self._others.learn(num_drafted, num_accepted)

    def tokens(self, num_drafted: int) -> float:
        """Return how many tokens of a draft are accepted on average."""
        return self.rate * (1 - self.rate**num_drafted) / (1 - self.rate)


class StepTimes:
    """Seconds of a step by its width, the rows of its forward: a line, fitted to the last steps."""

    def __init__(self) -> None:
        self._num_ignored = 0
        self._n = self._x = self._xx = self._y = self._xy = 0.0

    def learn(self, width: int, seconds: float) -> None:
        """Count a step."""
        if self._num_ignored < WARM_UP:
            self._num_ignored += 1
            return
        if self._n > WARM_UP - 1:
            seconds = min(seconds, MOST_OFF * self.of(width))
        sums = (self._n, self._x, self._xx, self._y, self._xy)
        new = (1.0, width, width**2, seconds, width * seconds)
        self._n, self._x, self._xx, self._y, self._xy = (
            FORGET_STEPS * old + one for old, one in zip(sums, new, strict=True)
        )

    def line(self) -> tuple[float, float]:
        """Return the seconds of a step and of each of its rows. Both are 0 while nothing is known."""
        if not self._n:
            return 0.0, 0.0
        mean, mean_s = self._x / self._n, self._y / self._n
        # Where all widths were alike, a row costs nothing as far as is known.
        slope = (self._xy / self._n - mean * mean_s) / self._variance if self.spread >= MIN_SPREAD else 0.0
        row_s = min(max(slope, 0.0), mean_s / mean)
        return mean_s - row_s * mean, row_s

    def of(self, width: float) -> float:
        """Return the seconds of a step of this width; 0: nothing is known."""
        base_s, row_s = self.line()
        return base_s + row_s * width

    @property
    def spread(self) -> float:
        """The standard deviation of the widths, as a share of their mean."""
        return math.sqrt(self._variance) * self._n / self._x if self._n else 0.0

    @property
    def _variance(self) -> float:
        return max(self._xx / self._n - (self._x / self._n) ** 2, 0.0)


class Planner:
    """Says how many draft tokens each row is worth: those that give the most tokens a second. ``gamma`` is the most."""

    def __init__(self, gamma: int) -> None:
        self.times = StepTimes()
        self._gamma = gamma
        self._until_trial = self._interval = FIRST_TRIAL

    def plan(self, rates: Sequence[float], num_others: int, num_drafted: int) -> list[int]:
        """Return γ of each row, by its acceptance. Now and then it is another one, to learn what that takes.

        ``num_others``: rows that have no drafts; ``num_drafted``: draft tokens that the last step verified.
        """
        gammas = self._best(rates, num_others)
        self._until_trial -= 1
        if self._until_trial < 0 and num_drafted:
            self._end_trial()
        if self._until_trial > 0:
            return gammas
        if not any(gammas):
            # Until there were drafts: nobody waits for them.
            return [min(PROBE, self._gamma)] * len(rates)
        self._end_trial()
        return [0] * len(rates) if self.times.spread < MIN_SPREAD else gammas

    def wait_s(self, tokens: float, width: int, more_tokens: float, more_width: int) -> float:
        """Return how long it pays to wait for drafts: the step's tokens and rows without them, and what they add."""
        alone_s = self.times.of(width)
        return alone_s * (1 + more_tokens / tokens) - self.times.of(width + more_width) if alone_s else FIRST_WAIT_S

    def _end_trial(self) -> None:
        self._interval = min(2 * self._interval, LAST_TRIAL)
        self._until_trial = self._interval

    def _best(self, rates: Sequence[float], num_others: int) -> list[int]:
        gammas, width = [0] * len(rates), len(rates) + num_others
        tokens, (base_s, row_s) = float(width), self.times.line()
        chances = ((rate ** (i + 1), row) for row, rate in enumerate(rates) for i in range(self._gamma))
        for chance, row in sorted(chances, reverse=True):
            # It takes more of the time than it brings of the tokens.
            if chance * (base_s + row_s * width) < tokens * row_s:
                break
            gammas[row] += 1
            tokens, width = tokens + chance, width + 1
        return gammas
