"""How often the next proposal is there before it is asked for, and how long it is then: slowly forgotten.

Both hang on the round before. What the target says where a draft stood as a whole is easier to foresee than its
correction where it did not. And a longer draft gives more time to prepare, since the target takes longer: a proposal
that is not there in time is none.
"""

from orchestrator.auto.agreement import Share
from orchestrator.auto.fit import Line, Sums
from orchestrator.auto.observation import Behind
from orchestrator.auto.rehearsal import Ahead

FIRST_CHANCE, FIRST_LENGTH = 0.5, 2
"""As long as nothing was seen: enough for it to be looked for."""
CHANCE_COUNT = 4.0
"""How many rounds must be seen before what is seen weighs as much as that."""
TOLD_SLOPE = -0.2
"""How much seldomer a draft of one token more is told of in time, until that is measured."""
SLOPE_COUNT = 64.0
"""The same, in rounds of one draft token more or less, for how much hangs on γ: a line from few γ leads far off."""
MIN_SEEN = 4
HALF_LIFE = 60
"""In rounds."""


class Chance:
    """How often something is there, on a straight line over the γ of the round before: few γ are tried often."""

    def __init__(self) -> None:
        self._sums = Sums(2, HALF_LIFE)

    def add(self, gamma: int, happened: bool) -> None:
        self._sums.add((1, gamma), happened)

    def line(self, expected: float, max_gamma: int, expected_slope: float = 0.0) -> list[float]:
        """Return the chance by γ, drawn to what is ``expected`` of all of them where little was seen."""
        base, slope = self._sums.drawn((CHANCE_COUNT, SLOPE_COUNT), (expected, expected_slope))
        return [min(max(base + slope * gamma, 0.0), 1.0) for gamma in range(max_gamma + 1)]


class Readiness:
    """What there is when a round is planned, by the round before."""

    def __init__(self) -> None:
        self._share = Share()
        self._behind_whole, self._behind_rejection, self._told = Chance(), Chance(), Chance()
        self._length = Line(2, (((0, 1), SLOPE_COUNT),), HALF_LIFE)

    @property
    def is_known(self) -> bool:
        return self._share.seen >= MIN_SEEN

    def observe(self, behind: Behind, length: int, wanted: int = 0, *, told: bool = False) -> None:
        """Count a round: ``length`` tokens were there for it, 0: none.

        Args:
            wanted: how many draft tokens it had. If all of them were there, there may have been time for more, one at
                least: what was never asked for must not look as if it could not be had.
            told: the drafter had said so before it was asked.
        """
        self._share.add(length > 0)
        (self._behind_whole if behind.whole else self._behind_rejection).add(behind.gamma, length > 0)
        if length:
            self._length.add((1, behind.gamma), length + (length == wanted))
        if length and wanted:
            self._told.add(wanted, told)

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
        lengths = [self._length_after(gamma) for gamma in range(max_gamma + 1)]
        return Ahead(foreseen, others, lengths, self._told.line(1.0, max_gamma, TOLD_SLOPE))

    def _length_after(self, gamma: int) -> float:
        return max(self._length.at((1, gamma)), 1.0) if self._length.count >= MIN_SEEN else FIRST_LENGTH
