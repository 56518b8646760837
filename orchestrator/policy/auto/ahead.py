"""How often the next proposal has been begun before it is asked for: slowly forgotten.

That hangs on the round before. What the target says where a draft stood as a whole is easier to foresee than its
correction where it did not.
"""

from orchestrator.policy.auto.agreement import Share
from orchestrator.policy.auto.fit import Sums
from orchestrator.policy.auto.observation import PreviousRound
from orchestrator.policy.auto.simulate import Ahead

FIRST_CHANCE = 0.5
CHANCE_COUNT = 4.0
"""How many rounds must be seen before what is seen weighs as much as that."""
SLOPE_COUNT = 64.0
"""The same, in rounds of one draft token more or less, for how much hangs on γ: a line from few γ leads far off."""
HALF_LIFE = 60
"""In rounds."""


class Chance:
    """How often something is there, on a straight line over the γ of the round before: few γ are tried often."""

    def __init__(self) -> None:
        self._sums = Sums(2, HALF_LIFE)

    def add(self, gamma: int, happened: bool) -> None:
        self._sums.add((1, gamma), happened)

    def line(self, expected: float, max_gamma: int) -> list[float]:
        """Return the chance by γ, drawn to what is ``expected`` of all of them where little was seen."""
        base, slope = self._sums.drawn((CHANCE_COUNT, SLOPE_COUNT), (expected, 0.0))
        if slope > 0:
            # A longer draft has more outcomes: none of them is prepared the more often.
            seen, true = self._sums.gram[0][0], self._sums.moment[0]
            base, slope = (true + CHANCE_COUNT * expected) / (seen + CHANCE_COUNT), 0.0
        return [min(max(base + slope * gamma, 0.0), 1.0) for gamma in range(max_gamma + 1)]


class PreparedDrafts:
    """What there is when a draft is asked for, by the round before."""

    def __init__(self) -> None:
        self._share = Share()
        self._behind_whole, self._behind_rejection = Chance(), Chance()

    def observe(self, previous_round: PreviousRound, *, is_there: bool) -> None:
        """Count a round for which something of its draft was there, or nothing."""
        self._share.add(is_there)
        (self._behind_whole if previous_round.whole else self._behind_rejection).add(previous_round.gamma, is_there)

    def ahead(self, max_gamma: int, agreement: float) -> Ahead:
        """Return what is to be expected, after rounds of up to ``max_gamma`` draft tokens.

        Of a draft that stood as a whole nobody knows whether the draft agrees on the token behind it. Where it does
        not, that is as hard to foresee as a correction; the rest follows.

        Args:
            agreement: how often it does.
        """
        expected = self._share.given(FIRST_CHANCE, CHANCE_COUNT)
        whole, others = (chance.line(expected, max_gamma) for chance in (self._behind_whole, self._behind_rejection))
        foreseen = [
            min(max((both - (1 - agreement) * other) / max(agreement, 0.1), both), 1.0)
            for both, other in zip(whole, others, strict=True)
        ]
        return Ahead(foreseen, others)
