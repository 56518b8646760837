"""How often the next proposal is there before it is asked for: counts that are slowly forgotten.

A longer one takes longer to prepare, and a place where the target is unsure is harder to foresee. So it hangs on the
length that was asked for and on the target's confidence, which are counted apart and multiplied.
"""

from orchestrator.auto.survival import NUM_BUCKETS, Luck, Share

FIRST_LENGTH = 3
"""Draft tokens of a prepared proposal, until it is known how long they take."""
FIRST_CHANCE = 0.5
LONGER = 0.85
"""What becomes of the chance with one more token, where nothing was seen yet: high enough that it is tried."""
SHORTER = 0.25
"""Of the proposals that are late, how many are in time with one token less, where nothing was seen yet."""


class Readiness:
    """The chance that a proposal is there when the round before it is committed."""

    def __init__(self) -> None:
        self._lengths: dict[int, Share] = {}
        self._luck = [Luck() for _ in range(NUM_BUCKETS)]

    def observe(self, bucket: int, length: int, *, ready: bool) -> None:
        """Count a round for which proposals of ``length`` tokens were to be prepared."""
        self._luck[bucket].add(ready, self._chance(length))
        self._lengths.setdefault(length, Share()).add(ready)

    def chances(self, length: int) -> list[float]:
        """Return the chance for every bucket, with proposals of ``length`` tokens."""
        expected = self._chance(length)
        return [luck.applied_to(expected) for luck in self._luck]

    def _chance(self, length: int) -> float:
        """Return the chance over all buckets: from what is known best, a token at a time. A longer one has no more."""
        known = max(self._lengths, key=lambda one: self._lengths[one].seen, default=length)
        chance = self._share(known, FIRST_CHANCE)
        for longer in range(known + 1, length + 1):
            chance = min(chance, self._share(longer, LONGER * chance))
        for shorter in range(known - 1, length - 1, -1):
            chance = max(chance, self._share(shorter, chance + SHORTER * (1 - chance)))
        return chance

    def _share(self, length: int, expected: float) -> float:
        share = self._lengths.get(length)
        return expected if share is None else share.given(expected)
