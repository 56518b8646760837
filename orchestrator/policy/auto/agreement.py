"""How often a draft token stands, given the target's confidence in the token before it: counts, slowly forgotten."""

from bisect import bisect_right

from orchestrator.policy.auto.fit import Sums

BUCKET_EDGES = (0.2, 0.3, 0.5, 0.7, 0.85, 0.95)
NUM_BUCKETS = len(BUCKET_EDGES) + 1
PRIOR_AGREEMENT = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Of a bucket, as long as nothing was seen: high enough that drafting is tried."""
PRIOR_COUNT = 16.0
"""How many tokens must be seen before what is seen weighs as much as what is expected."""
LEVEL_COUNT, SLOPE_COUNT = 4.0, 16.0
"""The same for the level over all buckets, whose number grows fastest: a useless draft is soon known; and for how much
more of them stand where the target is sure, which at a high temperature is little."""
HALF_LIFE = 200
"""In tokens of one count."""
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

    def given(self, expected: float, weight: float = PRIOR_COUNT) -> float:
        """Return the share, drawn towards what was ``expected`` as if that had been seen ``weight`` times."""
        return (self.true + weight * expected) / (self.seen + weight)


class Agreement:
    """The shares of all buckets. Where little was seen it is drawn to the prior, moved and tilted to fit the rest."""

    def __init__(self) -> None:
        self._shares = [Share() for _ in range(NUM_BUCKETS)]
        self._mean = sum(PRIOR_AGREEMENT) / NUM_BUCKETS
        self._spread = sum((prior - self._mean) ** 2 for prior in PRIOR_AGREEMENT) / NUM_BUCKETS
        self._sums = Sums(2, HALF_LIFE)

    def add(self, bucket: int, happened: bool) -> None:
        """Count a draft token that was judged, those before it in its round having stood."""
        prior = PRIOR_AGREEMENT[bucket]
        self._sums.add((1, prior - self._mean), happened - prior)
        self._shares[bucket].add(happened)

    def expected(self) -> list[float]:
        """Return the share of each bucket."""
        level, tilt = self._sums.drawn((LEVEL_COUNT, SLOPE_COUNT * self._spread), (0.0, 0.0))
        expected = [prior + level + tilt * (prior - self._mean) for prior in PRIOR_AGREEMENT]
        return [share.given(min(max(one, 0.0), 1.0)) for share, one in zip(self._shares, expected, strict=True)]
