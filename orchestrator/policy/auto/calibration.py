"""What choices came to, against what they had promised.

A rehearsal knows what rounds cost, not all of what happens where many sessions wait for each other, and of many
promises the highest is mostly too high, most of all in the beginning. What was too high in one is so in its neighbours
as well: the same texts, the same prices. So a choice is believed by the share that all kept that draft as it does,
whatever their γ: were it by its own, the one that was never tried would seem the best. The target alone is believed by
its own share: nothing of a draft is in its promise.
"""

from enum import Enum

from orchestrator.policy.auto.options import PlanChoice

LEAST, MOST = 0.5, 1.5
"""Shares beyond these are of something else: a verifier that was lost, a reader who slept."""
MIN_VERDICTS, MIN_VERDICTS_A_SESSION = 32, 16
"""Of one choice, before what it came to says anything; the latter under load."""
KEPT_WEIGHT = 0.85
"""Of what was found out, each time that more is."""
DOUBT = 0.25
"""What a promise's own word weighs against one time that it was found out."""


class WaitKind(Enum):
    """How the sessions of a choice wait for each other, and for the drafter."""

    ALONE = "the target alone"
    STEADY = "drafts everywhere"
    GATED = "alone where it is unsure"

    @classmethod
    def of(cls, choice: PlanChoice) -> "WaitKind":
        if choice.closed:
            return cls.GATED if choice.drafts else cls.ALONE
        return cls.STEADY


DRAFTING = WaitKind.STEADY, WaitKind.GATED
"""Without load these miss their promises alike."""


class ChoiceCounts:
    """What happens while one choice is in use."""

    __slots__ = ("num_tokens", "num_verdicts", "total_us")

    def __init__(self) -> None:
        self.num_verdicts = self.num_tokens = self.total_us = 0

    def add(self, num_tokens: int, session_us: int) -> None:
        """Count a verdict, and the time since the one before it in that session."""
        self.num_verdicts += 1
        self.num_tokens += num_tokens
        self.total_us += session_us

    def is_enough(self, sessions: int) -> bool:
        """Return whether it says anything, while so many share the verifier."""
        return self.num_verdicts >= max(MIN_VERDICTS, MIN_VERDICTS_A_SESSION * sessions) and self.total_us > 0


class Calibration:
    """Of one mode."""

    def __init__(self) -> None:
        self._found = dict.fromkeys(WaitKind, (0.0, 0.0))
        """A weight, and the share kept times that."""

    def mark_stable(self, choice: PlanChoice, rate: float, tally: ChoiceCounts) -> None:
        """Take over what ``choice`` came to, which promises ``rate`` tokens per microsecond at the same prices."""
        for kind, (weight, kept) in self._found.items():
            self._found[kind] = (weight * KEPT_WEIGHT, kept * KEPT_WEIGHT)
        weight, kept = self._found[WaitKind.of(choice)]
        share = tally.num_tokens / tally.total_us / rate
        self._found[WaitKind.of(choice)] = (weight + 1, kept + min(max(share, LEAST), MOST))

    def kept(self, choice: PlanChoice, *, crowded: bool = False) -> float:
        """Return the share that ``choice`` may be expected to keep.

        Args:
            crowded: sessions wait for each other, in one kind of choice otherwise than in another.
        """
        kind = WaitKind.of(choice)
        found = [self._found[one] for one in ((kind,) if crowded or kind is WaitKind.ALONE else DRAFTING)]
        return (DOUBT + sum(kept for _, kept in found)) / (DOUBT + sum(weight for weight, _ in found))

    def doubt(self, kind: WaitKind) -> float:
        """Return the share of doubt, from 0 to 1, in what is known of one kind; 1: nothing was found out."""
        weight, _ = self._found[kind]
        return DOUBT / (DOUBT + weight)
