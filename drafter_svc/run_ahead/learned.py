"""What the sessions of a drafter learn together of guessing ahead: how sure targets are, and whether guessing pays."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from drafter_svc.run_ahead.sharpness import Sharpness
from specgate.types import SessionSpec

TRIAL_EVERY = 16
"""Timed rounds from one trial to the next, at the least."""
TRIAL_ROUNDS = 6
"""Rounds of a trial. The first two are not timed: two rounds are prepared ahead."""
_TRIED = 0.005
"""Share of the time that trials may lose."""
_FORGET, _PRIOR_TRIALS = 0.9, 2.0
"""What a trial counts after the next one; and how many of no difference come before the first one."""
_MOST = 0.5
"""A trial tells of at most so much: a machine that was busy meanwhile decides little."""


class Payoff:
    """What guesses cost, as a share of a round, by trials: some rounds with guesses against those without before them.

    A trial is of one session. Where others guess meanwhile it sees its own share of the cost alone.
    """

    def __init__(self) -> None:
        self._costs, self._trials = 0.0, _PRIOR_TRIALS
        self._timed, self._every = 0, float(TRIAL_EVERY)
        """Rounds since the last trial, and until the next one."""

    @property
    def cost(self) -> float:
        """Below 0 where rounds with guesses take less time."""
        return self._costs / self._trials

    @property
    def pays(self) -> bool:
        return self.cost <= 0

    @property
    def is_trial_due(self) -> bool:
        return self._timed >= self._every

    def count_round(self) -> None:
        """A round was timed that is no trial."""
        self._timed += 1

    def begin_trial(self) -> None:
        """A trial begins. Its session may end before it does: then the next one waits for twice as long."""
        self._timed, self._every = 0, 2 * self._every

    def learn(self, cost: float) -> None:
        """A trial is over."""
        self._costs = _FORGET * self._costs + min(max(cost, -_MOST), _MOST)
        self._trials = _FORGET * self._trials + 1
        self._every = max(TRIAL_EVERY, TRIAL_ROUNDS * abs(self.cost) / _TRIED)


@dataclass(frozen=True, slots=True)
class Learned:
    """What sessions whose targets choose alike learn together; ``clock``, in seconds, times their rounds."""

    sharpness: Sharpness = field(default_factory=Sharpness)
    payoff: Payoff = field(default_factory=Payoff)
    clock: Callable[[], float] = time.monotonic


class LearnedByMode:
    """One for greedy, and for each quarter of temperature and each verification mode."""

    def __init__(self) -> None:
        self._modes: dict[tuple[int, bool], Learned] = defaultdict(Learned)

    def of(self, spec: SessionSpec) -> Learned:
        """Return what was learned from sessions like this one."""
        return self._modes[spec.sampling.quarters, spec.rejects]
