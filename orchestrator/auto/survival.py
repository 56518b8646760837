"""How many draft tokens survive, given the confidence of the token before them: counts that are slowly forgotten."""

import math
from bisect import bisect_right
from itertools import accumulate
from operator import mul

from orchestrator.auto.fit import Sums

BUCKET_EDGES = (0.2, 0.3, 0.5, 0.7, 0.85, 0.95)
NUM_BUCKETS = len(BUCKET_EDGES) + 1
PRIOR_ACCEPTANCE = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Of a bucket's first draft token, as long as nothing was seen: high enough that drafting is tried."""
PRIOR_LATER = 0.8
"""Of all others."""
PRIOR_COUNT = 16.0
"""How many tokens must be seen before what is seen weighs as much as what is expected."""
POOL_COUNT = 64.0
"""The same for later tokens of a bucket, and of a position: there they are rarely far from all others."""
LUCK_COUNT, SLOPE_COUNT = 4.0, 16.0
"""The same for the level of first tokens over all buckets, whose number grows fastest: a useless draft is soon known;
and for how much more of them stand where the target is sure, which at a high temperature is little."""
HOPE = 0.5
"""In standard errors of all that was ever seen: how far above the mean an estimate is put. Where drafting stops nothing
more is seen of it, so bad luck would stay; what good luck did is soon found out (optimism in the face of uncertainty,
Auer et al., 2002)."""
HALF_LIFE = 200
"""In tokens of one count."""
_DECAY = 0.5 ** (1 / HALF_LIFE)


def bucket_of(confidence: float | None) -> int:
    """Return the bucket of a confidence; before the first token it is the surest one, as for an open gate."""
    return NUM_BUCKETS - 1 if confidence is None else bisect_right(BUCKET_EDGES, confidence)


class Share:
    """The share of events that came true, of the last ones."""

    __slots__ = ("count", "seen", "true")

    def __init__(self) -> None:
        self.true = 0.0
        self.seen = 0.0
        self.count = 0

    def add(self, happened: bool) -> None:
        self.true = self.true * _DECAY + happened
        self.seen = self.seen * _DECAY + 1
        self.count += 1

    def given(self, expected: float, weight: float = PRIOR_COUNT) -> float:
        """Return the share, drawn towards what was ``expected`` as if that had been seen ``weight`` times."""
        return (self.true + weight * expected) / (self.seen + weight)

    def hoped(self, expected: float) -> float:
        """Return what the share may well be: the more, the less was ever seen."""
        mean = self.given(expected)
        return min(mean + HOPE * math.sqrt(mean * (1 - mean) / (self.count + PRIOR_COUNT)), 1.0)


class Luck:
    """How events do against what was expected of them, to correct what is expected.

    Args:
        weight: how many of them must be seen before what is seen weighs as much as what was expected.
    """

    __slots__ = ("_expected", "_true")

    def __init__(self, weight: float) -> None:
        self._true = self._expected = weight

    def add(self, happened: bool, expected: float) -> None:
        self._true = self._true * _DECAY + happened
        self._expected = self._expected * _DECAY + expected

    def applied_to(self, expected: float) -> float:
        return min(expected * self._true / self._expected, 1.0)


class FirstTokens:
    """What is to be expected of first tokens, by bucket: the prior, moved and tilted to fit all that was seen."""

    def __init__(self) -> None:
        self._mean = sum(PRIOR_ACCEPTANCE) / NUM_BUCKETS
        self._spread = sum((prior - self._mean) ** 2 for prior in PRIOR_ACCEPTANCE) / NUM_BUCKETS
        self._sums = Sums(2, HALF_LIFE)

    def add(self, bucket: int, happened: bool) -> None:
        prior = PRIOR_ACCEPTANCE[bucket]
        self._sums.add((1, prior - self._mean), happened - prior)

    def expected(self, bucket: int) -> float:
        """Return the share of a bucket."""
        prior = PRIOR_ACCEPTANCE[bucket]
        level, tilt = self._sums.drawn((LUCK_COUNT, SLOPE_COUNT * self._spread), (0.0, 0.0))
        return min(max(prior + level + tilt * (prior - self._mean), 0.0), 1.0)


class Bucket:
    """What is counted apart in a bucket: its first draft tokens, and all later ones together."""

    __slots__ = ("first", "later")

    def __init__(self) -> None:
        self.first, self.later = Share(), Share()


class Survival:
    """Acceptance by bucket and position. Position 1 is the first draft token of a round.

    A position is judged only if all before it were accepted, so these are conditional probabilities and their product
    is the survival. Tokens behind a rejection were never judged and count nowhere.

    The confidence says much of the first token and little of later ones, and those differ little by their position. So
    a bucket has two counts of its own, and what is particular to a position is taken from all buckets: a count for each
    bucket and position would have so few tokens in it that its luck, to the power of γ, would choose the γ.
    """

    def __init__(self) -> None:
        self._buckets = [Bucket() for _ in range(NUM_BUCKETS)]
        self._later = Share()
        self._positions: list[Luck] = []
        self._first = FirstTokens()

    def observe(self, bucket: int, judged: int, accepted: int) -> None:
        """Count a round: ``judged`` tokens up to and including its first rejection, ``accepted`` of them."""
        if not judged:
            return
        own = self._buckets[bucket]
        self._first.add(bucket, accepted > 0)
        own.first.add(accepted > 0)
        while len(self._positions) < judged - 1:
            self._positions.append(Luck(POOL_COUNT))
        later = self._later_of(own)
        for index in range(1, judged):
            # Against what the bucket expects: only sure places get far.
            self._positions[index - 1].add(index < accepted, later)
            for share in (own.later, self._later):
                share.add(index < accepted)

    def acceptance(self, bucket: int, gamma: int) -> list[float]:
        """Return the probability of each of ``gamma`` positions to be accepted, those before it being accepted.

        What a bucket has little to tell of is drawn to what is expected: its first token to what is to be expected at
        such a confidence, later ones to what all buckets tell of them.
        """
        own = self._buckets[bucket]
        first = own.first.hoped(self._first.expected(bucket))
        later = self._later_of(own)
        odds = [first, *(luck.applied_to(later) for luck in self._positions)]
        return (odds + [odds[-1] if self._positions else later] * (gamma - len(odds)))[:gamma]

    def _later_of(self, bucket: Bucket) -> float:
        return bucket.later.given(self._later.hoped(PRIOR_LATER), POOL_COUNT)

    def expected_tokens(self, bucket: int, gamma: int) -> list[float]:
        """Return what a round emits on average with 0, 1, ... ``gamma`` draft tokens, the target's own token in."""
        survival = accumulate(self.acceptance(bucket, gamma), mul)
        return list(accumulate(survival, initial=1.0))
