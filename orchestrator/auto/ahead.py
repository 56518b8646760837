"""How often the next proposal is there before it is asked for, and how long it is then: slowly forgotten.

Both hang on the round before. A longer draft seldom stands as a whole, and what the target says where it does is easier
to foresee than its correction where it does not. And it gives more time to prepare, since the target takes longer: a
proposal that is not there in time is none. And where the target is unsure, its next token is hard to foresee.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from orchestrator.auto.fit import Line, Sums
from orchestrator.auto.options import Ahead, Prospect
from orchestrator.auto.survival import NUM_BUCKETS, Luck, Share, Survival

FIRST_CHANCE, FIRST_LENGTH = 0.5, 2
"""As long as nothing was seen: enough for it to be looked for."""
CHANCE_COUNT = 4.0
"""How many rounds must be seen before what is seen weighs as much as that."""
MIN_SEEN = 4
HALF_LIFE = 60
"""In rounds."""


class Chance:
    """How often something is there, on a straight line over the γ of the round before: few γ are tried often."""

    def __init__(self) -> None:
        self._sums = Sums(2, HALF_LIFE)

    def add(self, gamma: int, happened: bool) -> None:
        self._sums.add((1, gamma), happened)

    def line(self, expected: float) -> Callable[[int], float]:
        """Return the chance by γ, drawn to what is ``expected`` of all of them where little was seen."""
        base, slope = self._sums.drawn((CHANCE_COUNT, CHANCE_COUNT), (expected, 0.0))
        return lambda gamma: min(max(base + slope * gamma, 0.0), 1.0)


class Readiness:
    """What there is when a round is planned, by the round before and by the confidence behind it."""

    def __init__(self) -> None:
        self._share = Share()
        self._by_bucket = [Luck(CHANCE_COUNT) for _ in range(NUM_BUCKETS)]
        self._behind_whole, self._behind_rejection = Chance(), Chance()
        self._length = Line(2, (((0, 1), 1.0),), HALF_LIFE)
        self.survival = Survival()
        """Of drafts that were there: what could be foreseen is easier than what could not."""

    def observe(self, bucket: int, gamma: int, length: int, *, whole: bool) -> None:
        """Count a round after one of ``gamma`` draft tokens: ``length`` tokens were there for it, 0: none.

        Args:
            whole: all ``gamma`` stood.
        """
        self._by_bucket[bucket].add(length > 0, self._chance)
        self._share.add(length > 0)
        (self._behind_whole if whole else self._behind_rejection).add(gamma, length > 0)
        if length:
            self._length.add((1, gamma), length)

    @property
    def _chance(self) -> float:
        return self._share.given(FIRST_CHANCE, CHANCE_COUNT)

    def ahead(self, max_gamma: int, visits: Sequence[float]) -> Ahead:
        """Return what is to be expected, after rounds of up to ``max_gamma`` draft tokens.

        Args:
            visits: per bucket how many verdicts end there.
        """
        whole, rejected = (chance.line(self._chance) for chance in (self._behind_whole, self._behind_rejection))
        after = [
            Prospect(stands * whole(gamma) + (1 - stands) * rejected(gamma), min(self._length_after(gamma), max_gamma))
            for gamma, stands in enumerate(self._stands(max_gamma, visits))
        ]
        tokens = [self.survival.expected_tokens(bucket, max_gamma) for bucket in range(NUM_BUCKETS)]
        return Ahead([luck.applied_to(self._chance) for luck in self._by_bucket], after, tokens)

    def _stands(self, max_gamma: int, visits: Sequence[float]) -> list[float]:
        """Return how likely all of 0, 1, ... draft tokens stand, by those that were there: most of them are."""
        odds = [self.survival.acceptance(bucket, max_gamma) for bucket in range(NUM_BUCKETS)]
        by_bucket = [accumulate(acceptance, mul, initial=1.0) for acceptance in odds]
        return [sum(map(mul, visits, column)) / sum(visits) for column in zip(*by_bucket, strict=True)]

    def _length_after(self, gamma: int) -> int:
        if self._length.count < MIN_SEEN:
            return FIRST_LENGTH
        return max(round(self._length.at((1, gamma))), 1)
