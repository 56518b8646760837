"""Which verdicts are likely: how many draft tokens are accepted, and which guess of the target's own token holds."""

from typing import NamedTuple

from specgate.types import Verification

MAX_RANKS = 8
"""Guesses of one own token at the most."""
WORTH_A_ROW = 0.01
"""Outcomes that are less likely are not prepared, however many rows there are."""
_FORGET = 0.98
"""What a round counts after the next one."""
_ACCEPTANCE, _ROUNDS = 0.7, 5.0
"""The acceptance that is assumed before anything was seen, and how many rounds it is worth."""


class Guess(NamedTuple):
    """An outcome: so many draft tokens accepted, then the target's own token is the guess of this rank, 0 the best."""

    num_accepted: int
    rank: int


class Hits:
    """How often the guess of each rank held; starts from what was measured on other models."""

    def __init__(self, first: float, others: float) -> None:
        self._counts = [_ROUNDS * first] + [_ROUNDS * others * 0.5 ** (rank + 1) for rank in range(MAX_RANKS - 1)]
        self._total = _ROUNDS

    def learn(self, rank: int | None) -> None:
        self._counts = [_FORGET * count for count in self._counts]
        self._total = _FORGET * self._total + 1
        if rank is not None:
            self._counts[rank] += 1

    def rate(self, rank: int) -> float:
        return self._counts[rank] / self._total


class Outcomes:
    """A session's chances, learned from its past rounds and slowly forgotten.

    The own token after a rejection and the one after full acceptance are guessed apart: of the first we know that it
    is not what the draft liked best.
    """

    def __init__(self, verification: Verification) -> None:
        guessed = verification is not Verification.REJECTION
        self._recovered = Hits(0.4, 0.3) if guessed else Hits(0.12, 0.2)
        self._bonus = Hits(0.55, 0.3) if guessed else Hits(0.25, 0.2)
        self._accepted = _ROUNDS * _ACCEPTANCE
        self._judged = _ROUNDS

    @property
    def acceptance(self) -> float:
        """The chance that a draft token is accepted when all before it are."""
        return self._accepted / self._judged

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """A verdict is in. What follows its first rejection was never judged."""
        self._accepted = _FORGET * self._accepted + num_accepted
        self._judged = _FORGET * self._judged + num_accepted + (num_accepted < num_drafted)

    def learn_rank(self, *, bonus: bool, rank: int | None) -> None:
        """The target's own token was the guess of this rank; None: it was not among the ``MAX_RANKS`` best."""
        self._hits(bonus).learn(rank)

    def likeliest(self, num_drafted: int, most: int) -> list[Guess]:
        """Return up to ``most`` outcomes of a round with ``num_drafted`` tokens, the likeliest first."""
        chances = {
            Guess(num_accepted, rank): self._chance(num_accepted, num_drafted)
            * self._hits(num_accepted == num_drafted).rate(rank)
            for num_accepted in range(num_drafted + 1)
            for rank in range(MAX_RANKS)
        }
        worth = [guess for guess, chance in chances.items() if chance >= WORTH_A_ROW]
        return sorted(worth, key=lambda guess: -chances[guess])[:most]

    def _hits(self, bonus: bool) -> Hits:
        return self._bonus if bonus else self._recovered

    def _chance(self, num_accepted: int, num_drafted: int) -> float:
        rejected = 1.0 if num_accepted == num_drafted else 1 - self.acceptance
        return self.acceptance**num_accepted * rejected
