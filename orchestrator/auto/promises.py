"""What choices came to, against what they had promised.

A rehearsal knows what rounds cost, not all of what happens where many sessions wait for each other, and of many
promises the highest is mostly too high. So a choice is believed by the share that it kept while it was in use, its
neighbours by that too, and what was never in use by what others kept that draft.
"""

from collections import defaultdict
from enum import Enum

from orchestrator.auto.options import Choice

LEAST, MOST = 0.5, 1.5
"""Shares beyond these are of something else: a verifier that was lost, a reader who slept."""
MIN_VERDICTS = 32
"""Of one choice, before what it came to says anything."""
KEPT_WEIGHT = 0.97
"""Of what was found out, each time that more is."""
DOUBT = 0.5
"""What a promise's own word weighs against one time that it was found out."""
NEAR = 0.5
"""What is found out of a choice counts for those with one draft token more or less, and of these again; and for those
that draft elsewhere."""


class Kind(Enum):
    """How the sessions of a choice wait for each other, and for the drafter."""

    ALONE = "the target alone"
    STEADY = "drafts everywhere"
    GATED = "alone where it is unsure"

    @classmethod
    def of(cls, choice: Choice) -> "Kind":
        if choice.closed:
            return cls.GATED if choice.drafts else cls.ALONE
        return cls.STEADY


class Tally:
    """What happens while one choice is in use."""

    __slots__ = ("num_tokens", "num_verdicts", "total_us")

    def __init__(self) -> None:
        self.num_verdicts = self.num_tokens = self.total_us = 0

    def add(self, num_tokens: int, session_us: int) -> None:
        """Count a verdict, and the time since the one before it in that session."""
        self.num_verdicts += 1
        self.num_tokens += num_tokens
        self.total_us += session_us

    @property
    def is_enough(self) -> bool:
        return self.num_verdicts >= MIN_VERDICTS and self.total_us > 0


class Promises:
    """Of one mode."""

    def __init__(self) -> None:
        self._kept: dict[Kind, dict[int, tuple[float, float]]] = defaultdict(dict)
        """By the most draft tokens of a choice: a weight, and the share kept times that."""

    def settle(self, choice: Choice, rate: float, tally: Tally) -> None:
        """Take over what ``choice`` came to, which promises ``rate`` tokens per microsecond at the same prices."""
        for known in self._kept.values():
            for gamma, (weight, kept) in known.items():
                known[gamma] = (weight * KEPT_WEIGHT, kept * KEPT_WEIGHT)
        known, gamma = self._kept[Kind.of(choice)], _gamma(choice)
        weight, kept = known.get(gamma, (0.0, 0.0))
        share = tally.num_tokens / tally.total_us / rate
        known[gamma] = (weight + 1, kept + min(max(share, LEAST), MOST))

    def kept(self, choice: Choice, *, crowded: bool = False) -> float:
        """Return the share that ``choice`` may be expected to keep.

        Args:
            crowded: sessions wait for each other, in one kind of choice otherwise than in another.
        """
        own, is_alone = Kind.of(choice), not choice.drafts
        total, shares = DOUBT, DOUBT * (1.0 if crowded or is_alone else self._usual)
        for kind, known in self._kept.items():
            if kind is own or not (crowded or is_alone or kind is Kind.ALONE):
                for gamma, (weight, kept) in known.items():
                    near: float = NEAR ** (abs(gamma - _gamma(choice)) + (kind is not own))
                    total += near * weight
                    shares += near * kept
        return shares / total

    @property
    def _usual(self) -> float:
        """What those that draft kept, all together."""
        found = [entry for kind, known in self._kept.items() if kind is not Kind.ALONE for entry in known.values()]
        return (1.0 + sum(kept for _, kept in found)) / (1.0 + sum(weight for weight, _ in found))


def _gamma(choice: Choice) -> int:
    return choice.easy if choice.drafts else 0
