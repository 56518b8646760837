"""What a draft brings, from how often it agrees and what forwards cost. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from orchestrator.policy.auto.costs import MeasuredCosts, forward_us

GAMMAS = range(1, 9)
"""As many as ``auto`` picks from."""


class Gain(NamedTuple):
    """The rate over that of the target alone, at the γ that is best; without the time between the services."""

    ratio: float
    gamma: int

    @classmethod
    def of(cls, costs: MeasuredCosts, tokens_per_round: Callable[[int], float]) -> Self:
        """Return the best gain; ``tokens_per_round`` of a γ counts the target's own token."""
        token_us, draft_us = forward_us(costs.target, 1), forward_us(costs.draft, 1)

        def ratio(gamma: int) -> float:
            return tokens_per_round(gamma) * token_us / (forward_us(costs.target, gamma + 1) + gamma * draft_us)

        return cls(*max((ratio(gamma), gamma) for gamma in GAMMAS))


def share_of(costs: MeasuredCosts) -> float:
    """Return what a draft's token takes of a forward of the target."""
    return forward_us(costs.draft, 1) / forward_us(costs.target, 1)


def tokens_at(acceptance: float) -> Callable[[int], float]:
    """Return the tokens of a round by γ where each draft token is accepted alike (Leviathan et al., 2023, eq. 1)."""
    return lambda gamma: sum(acceptance**place for place in range(gamma + 1))


def tokens_of(texts: Sequence[Sequence[bool]]) -> Callable[[int], float]:
    """Return the tokens of a round by γ, where the draft agrees so along greedy texts, position by position."""

    def tokens_per_round(gamma: int) -> float:
        num_rounds = sum(_rounds(agrees, gamma) for agrees in texts)
        return sum(map(len, texts)) / max(num_rounds, 1)

    return tokens_per_round


def _rounds(agrees: Sequence[bool], gamma: int) -> int:
    place = rounds = 0
    while place < len(agrees):
        end = min(place + gamma, len(agrees))
        place = next((one for one in range(place, end) if not agrees[one]), end) + 1
        rounds += 1
    return rounds
