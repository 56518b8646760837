"""How many draft tokens survive, given the confidence of the token before them: counts that are slowly forgotten."""

from bisect import bisect_right
from itertools import accumulate
from operator import mul

BUCKET_EDGES = (0.2, 0.3, 0.5, 0.7, 0.85, 0.95)
NUM_BUCKETS = len(BUCKET_EDGES) + 1
PRIOR_ACCEPTANCE = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Of a bucket's first draft token, as long as nothing was seen: high enough that drafting is tried."""
PRIOR_COUNT = 4.0
"""How many tokens must be seen before what is seen weighs as much as what is expected."""
HALF_LIFE = 150
"""In tokens of one bucket and position."""
_DECAY = 0.5 ** (1 / HALF_LIFE)


def bucket_of(confidence: float | None) -> int:
    """Return the bucket of a confidence; before the first token it is the surest one, as for an open gate."""
    return NUM_BUCKETS - 1 if confidence is None else bisect_right(BUCKET_EDGES, confidence)


class Share:
    """The share of events that came true, of the last ones."""

    __slots__ = ("seen", "true")

    def __init__(self) -> None:
        self.true = 0.0
        self.seen = 0.0

    def add(self, happened: bool) -> None:
        self.true = self.true * _DECAY + happened
        self.seen = self.seen * _DECAY + 1

    def given(self, expected: float) -> float:
        """Return the share, drawn towards what was ``expected`` where little was seen."""
        return (self.true + PRIOR_COUNT * expected) / (self.seen + PRIOR_COUNT)


class Luck:
    """How first draft tokens of all buckets do against what was expected of them, to correct what is expected."""

    __slots__ = ("_expected", "_true")

    def __init__(self) -> None:
        self._true = self._expected = PRIOR_COUNT

    def add(self, happened: bool, expected: float) -> None:
        self._true = self._true * _DECAY + happened
        self._expected = self._expected * _DECAY + expected

    def applied_to(self, expected: float) -> float:
        return min(expected * self._true / self._expected, 1.0)


class Survival:
    """Acceptance by bucket and position. Position 1 is the first draft token of a round.

    A position is judged only if all before it were accepted, so these are conditional probabilities and their product
    is the survival. Tokens behind a rejection were never judged and count nowhere.
    """

    def __init__(self) -> None:
        self._buckets: list[list[Share]] = [[] for _ in range(NUM_BUCKETS)]
        self._pooled: list[Share] = []
        self._luck = Luck()

    def observe(self, bucket: int, judged: int, accepted: int) -> None:
        """Count a round: ``judged`` tokens up to and including its first rejection, ``accepted`` of them."""
        self._luck.add(judged > 0 and accepted > 0, PRIOR_ACCEPTANCE[bucket])
        for shares in (self._buckets[bucket], self._pooled):
            while len(shares) < judged:
                shares.append(Share())
            for index in range(judged):
                shares[index].add(index < accepted)

    def acceptance(self, bucket: int, gamma: int) -> list[float]:
        """Return the probability of each of ``gamma`` positions to be accepted, those before it being accepted.

        Where a bucket has little to tell of a position it takes what all buckets tell of it; where these have little,
        what it expects of the position before.
        """
        own, expected, result = self._buckets[bucket], self._luck.applied_to(PRIOR_ACCEPTANCE[bucket]), []
        for index in range(gamma):
            if index and index < len(self._pooled):
                expected = self._pooled[index].given(expected)
            if index < len(own):
                expected = own[index].given(expected)
            result.append(expected)
        return result

    def expected_tokens(self, bucket: int, gamma: int) -> list[float]:
        """Return what a round emits on average with 0, 1, ... ``gamma`` draft tokens, the target's own token in."""
        survival = accumulate(self.acceptance(bucket, gamma), mul)
        return list(accumulate(survival, initial=1.0))
