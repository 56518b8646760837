"""How often the next proposal is there before it is asked for, and how long it is then: slowly forgotten."""

from orchestrator.auto.choice import Ahead
from orchestrator.auto.fit import Mean
from orchestrator.auto.survival import NUM_BUCKETS, Luck, Share

FIRST_CHANCE, FIRST_LENGTH = 0.5, 2
"""As long as nothing was seen: enough for it to be looked for."""
HALF_LIFE = 60


class Readiness:
    """What there is when the round before is committed. Where the target is unsure it is hard to foresee."""

    def __init__(self) -> None:
        self._share = Share()
        self._luck = [Luck() for _ in range(NUM_BUCKETS)]
        self._length = Mean(HALF_LIFE)

    def observe(self, bucket: int, length: int) -> None:
        """Count a round whose proposal was there with ``length`` tokens, 0: not at all."""
        self._luck[bucket].add(length > 0, self._chance)
        self._share.add(length > 0)
        if length:
            self._length.add(length)

    @property
    def _chance(self) -> float:
        return self._share.given(FIRST_CHANCE)

    def ahead(self) -> Ahead:
        """Return what is to be expected."""
        length = round(self._length.value) if self._length.known else FIRST_LENGTH
        return Ahead(length, [luck.applied_to(self._chance) for luck in self._luck])
