"""What drafts are worth: how often they are accepted, how long a step takes, and how long waiting pays."""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Sequence

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
FIRST_TRIAL, LAST_TRIAL = 16, 256
"""Timed steps until a trial of the other way; the number doubles with each trial that changes nothing."""
TRIAL_STEPS, UNTIMED_STEPS = 8, 2
"""Steps of a trial, and those after a change that have something of both ways: a draft is on its way."""
MOST_TRIALS = 8
"""A trial counts at least as one of so many."""
PROBE = 2
"""Draft tokens where a row would cost more than a draft token brings, as far as is known."""
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


class Turns:
    """Whether drafts are asked for: the clock decides, since a drafter may share cores or memory with vLLM.

    Steps with drafts and steps without are timed next to each other. Of steps with several numbers of rows each counts
    by what it would take without drafts.
    """

    def __init__(self) -> None:
        self.drafts = True
        self._gain = 0.0
        """The logarithm of the rate with drafts over that without, on average."""
        self._num_trials = 0
        self._left = self._interval = FIRST_TRIAL
        self._untimed = 0
        self._before: deque[tuple[float, float]] = deque(maxlen=2 * TRIAL_STEPS)
        self._trial: list[tuple[float, float]] | None = None

    def step(self, num_tokens: int, num_rows: int, seconds: float, alone_s: float) -> None:
        """Count a step; ``alone_s`` is what it would take without drafts, 0 where that is unknown."""
        if self._untimed or not alone_s:
            self._untimed = max(self._untimed - 1, 0)
            return
        steps = self._before if self._trial is None else self._trial
        steps.append((num_tokens / num_rows * alone_s, seconds))
        self._left -= 1
        if self._trial is None and self._left <= 0 and len(steps) >= TRIAL_STEPS:
            self._trial = []
            self._turn()
        elif self._trial is not None and len(self._trial) == TRIAL_STEPS:
            self._end(math.log(_rate(self._trial) / _rate(self._before)))

    def _end(self, gain: float) -> None:
        self._num_trials = min(self._num_trials + 1, MOST_TRIALS)
        # Before the first trial there was one of no difference.
        self._gain += ((gain if self.drafts else -gain) - self._gain) / (self._num_trials + 1)
        self._trial = None
        if self.drafts == (self._gain >= 0):
            self._before.clear()
            self._interval = FIRST_TRIAL
        else:
            self._turn()
            self._interval = min(2 * self._interval, LAST_TRIAL)
        self._left = self._interval

    def _turn(self) -> None:
        self.drafts = not self.drafts
        self._untimed = UNTIMED_STEPS


def _rate(steps: Collection[tuple[float, float]]) -> float:
    return math.fsum(value for value, _ in steps) / math.fsum(seconds for _, seconds in steps)


class Planner:
    """Says how many draft tokens each row is worth: those that give the most tokens a second. ``gamma`` is the most."""

    def __init__(self, gamma: int) -> None:
        self.times = StepTimes()
        self._turns: defaultdict[int, Turns] = defaultdict(Turns)
        self._gamma = gamma

    def turns(self, num_rows: int) -> Turns:
        """Return what the clock says with so many requests in a step: what one gains, eight may lose."""
        return self._turns[num_rows.bit_length()]

    def plan(self, rates: Sequence[float], num_others: int) -> list[int]:
        """Return γ of each row, by its acceptance. ``num_others``: rows that have no drafts."""
        if not self.turns(len(rates) + num_others).drafts:
            return [0] * len(rates)
        gammas = self._best(rates, num_others)
        return gammas if any(gammas) else [min(PROBE, self._gamma)] * len(rates)

    def wait_s(self, tokens: float, width: int, more_tokens: float, more_width: int) -> float:
        """Return how long it pays to wait for drafts: the step's tokens and rows without them, and what they add."""
        alone_s = self.times.of(width)
        return alone_s * (1 + more_tokens / tokens) - self.times.of(width + more_width) if alone_s else FIRST_WAIT_S

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
