"""Rates of blocks, and how sure their ratios are. Pure, and the same every time."""

import random
from collections.abc import Sequence
from typing import NamedTuple

NUM_RESAMPLES = 2000
MIN_BLOCKS = 4
"""Fewer blocks tell nothing of how blocks differ."""
LOW, HIGH = 0.025, 0.975


class Block(NamedTuple):
    """Requests that ran together under one choice: tokens, and the seconds in which they came."""

    tokens: int
    seconds: float


class RateRatio(NamedTuple):
    """Of two rates, with the bounds of its 95 % interval; None where there were too few blocks."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})")


def rate(blocks: Sequence[Block]) -> float:
    """Return all tokens over all seconds."""
    return sum(block.tokens for block in blocks) / sum(block.seconds for block in blocks)


def ratio(one: Sequence[Block], other: Sequence[Block], seed: int = 0) -> RateRatio:
    """Return the ratio of two rates over the same blocks; the interval is a bootstrap over pairs of blocks."""
    value, pairs = rate(one) / rate(other), list(zip(one, other, strict=True))
    if len(pairs) < MIN_BLOCKS:
        return RateRatio(value, None, None)
    draw = random.Random(seed)
    found = sorted(_ratio_of(draw.choices(pairs, k=len(pairs))) for _ in range(NUM_RESAMPLES))
    return RateRatio(value, found[round(LOW * (NUM_RESAMPLES - 1))], found[round(HIGH * (NUM_RESAMPLES - 1))])


def _ratio_of(pairs: Sequence[tuple[Block, Block]]) -> float:
    return rate([one for one, _ in pairs]) / rate([other for _, other in pairs])
