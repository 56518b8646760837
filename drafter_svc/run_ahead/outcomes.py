"""Which verdicts are likely: how many draft tokens are accepted, and what the target's own token after them is."""

import heapq
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

WORTH_A_ROW = 0.05
"""Outcomes that are less likely are not prepared, however many rows there are."""
_FORGET = 0.98
"""What a round counts after the next one."""
_ACCEPTANCE, _TOKENS = 0.7, 5.0
"""The acceptance that is assumed before anything was seen, and how many tokens it is worth."""


class Candidate(NamedTuple):
    """What the target may choose at a position, and the chance that it does."""

    token_id: int
    chance: float


class Outcome(NamedTuple):
    """So many draft tokens are accepted, then ``token_id`` is the target's own."""

    num_accepted: int
    token_id: int


class AcceptanceRate:
    """The chance that a draft token is accepted when all before it are, measured and slowly forgotten."""

    def __init__(self) -> None:
        self._accepted = _TOKENS * _ACCEPTANCE
        self._judged = _TOKENS

    @property
    def rate(self) -> float:
        return self._accepted / self._judged

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """A verdict is in. What follows its first rejection was never judged."""
        self._accepted = _FORGET * self._accepted + num_accepted
        self._judged = _FORGET * self._judged + num_accepted + (num_accepted < num_drafted)


def likeliest(
    rows: Sequence[Sequence[Candidate]],
    drafted: Sequence[int],
    most: int,
    acceptance: float | None = None,
    excluded: Set[int] = frozenset(),
) -> dict[Outcome, float]:
    """Return up to ``most`` outcomes and their chances, the likeliest first.

    Args:
        rows: candidates at each draft token's position; one row more if there is a position after the last one.
        acceptance: of a draft token; None takes the chance that its row gives it, as fits where the target accepts
            what it would have chosen.
        excluded: own tokens after which nothing can be drafted.
    """
    chances = dict(_chances(rows, drafted, acceptance))
    worth = [one for one, chance in chances.items() if chance >= WORTH_A_ROW and one.token_id not in excluded]
    return {one: chances[one] for one in heapq.nlargest(most, worth, key=chances.__getitem__)}


def _chances(
    rows: Sequence[Sequence[Candidate]], drafted: Sequence[int], acceptance: float | None
) -> Iterator[tuple[Outcome, float]]:
    reached = 1.0
    for num_accepted, row in enumerate(rows):
        chance_of: dict[int, float] = dict(row)
        accepted = 0.0
        if num_accepted < len(drafted):
            own = chance_of.pop(drafted[num_accepted], 0.0)
            accepted = own if acceptance is None else acceptance
        total = sum(chance_of.values())
        for token_id, chance in chance_of.items():
            yield Outcome(num_accepted, token_id), reached * (1 - accepted) * chance / total
        reached *= accepted
