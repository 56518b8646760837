"""What there is to choose from in a round, and what a proposal that lies ready changes about it."""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.auto.costs import Prices


class Prospect(NamedTuple):
    """How likely a proposal will be there for the next round, and how long it will be."""

    chance: float
    length: int


class Ahead(NamedTuple):
    """What is prepared: the chance that a proposal is there, by bucket, and the prospects, by γ of the round before.

    ``tokens`` is what a round emits on average with γ 0, 1, ... where one is there, by bucket.
    """

    chances: Sequence[float]
    after: Sequence[Prospect]
    tokens: Sequence[Sequence[float]]


class Option(NamedTuple):
    """What a choice comes to on average: tokens, rows in the forward, microseconds besides it, forwards waited for.

    ``future``: tokens that it brings the next round.
    """

    tokens: float
    rows: float
    besides_us: float
    waits: float
    future: float = 0.0

    def or_else(self, other: "Option", chance: float) -> "Option":
        """Return what comes of ``other`` with probability ``chance``, and of this one else."""
        return Option(*(mine + chance * (its - mine) for mine, its in zip(self, other, strict=True)))


class Load(NamedTuple):
    """What a table comes to: sessions in a forward, rows of one of them, how long it takes, tokens per microsecond."""

    batch: float
    width: float
    forward_us: float
    rate: float

    def worth(self, option: Option, prices: Prices) -> float:
        """Return the tokens that a round is ahead of the rate, its cost to others included."""
        others = self.batch - 1
        cost_us = (
            option.besides_us
            + option.waits * self.forward_us
            + prices.forward(others * self.width + option.rows, self.batch)
            + others * (prices.session_us + prices.row_us * (option.rows - 1))
        )
        return option.tokens + option.future - self.rate * cost_us


def drafts(tokens: Sequence[Sequence[float]], prices: Prices) -> list[list[Option]]:
    """Return per bucket what a round with 0, 1, ... draft tokens comes to if they cost no time."""
    return [[Option(emitted, gamma + 1, 0.0, prices.wait) for gamma, emitted in enumerate(known)] for known in tokens]


def with_ready(worths: Sequence[float], num_ready: int, rate: float, prices: Prices) -> tuple[float, int]:
    """Return the best worth, and its γ, where ``num_ready`` tokens are there.

    Args:
        worths: of a round with 0, 1, ... draft tokens if they cost no time.
    """
    return max((worth - rate * prices.ready(gamma, num_ready), gamma) for gamma, worth in enumerate(worths))
