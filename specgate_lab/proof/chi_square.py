"""The chi-square distribution, and how large a deviation a test by it finds. Pure Python."""

import math
from collections.abc import Callable

POWER = 0.9
"""What is called findable is found this often."""


def survival(statistic: float, degrees: int) -> float:
    """Return the probability that chi-square with ``degrees`` of freedom is at least ``statistic``."""
    if degrees == 0 or statistic <= 0.0:
        return 1.0
    # For whole degrees it is a finite sum (Abramowitz, Stegun 26.4.4 and 26.4.5).
    first = math.erfc(math.sqrt(statistic / 2)) if degrees % 2 else 0.0
    return first + sum(_step(statistic, below) for below in range(degrees % 2, degrees, 2))


def _step(statistic: float, degrees: int) -> float:
    """Return by how much ``survival`` grows from ``degrees`` to two more."""
    half = degrees / 2
    return math.exp(half * math.log(statistic / 2) - statistic / 2 - math.lgamma(half + 1))


def survival_of_shifted(statistic: float, degrees: int, shift: float) -> float:
    """Return the same where the law is not the supposed one: non-central chi-square, a Poisson mixture."""
    mean = shift / 2
    spread = 10.0 * math.sqrt(mean) + 20.0
    first = max(0, int(mean - spread))
    total, tail = 0.0, survival(statistic, degrees + 2 * first)
    for j in range(first, int(mean + spread) + 1):
        weight = math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean else float(j == 0)
        total += weight * tail
        tail += _step(statistic, degrees + 2 * j)
    return total


def findable_shift(degrees: int, level: float) -> float:
    """Return the non-centrality that a test at ``level`` finds with ``POWER``; infinite for no degree of freedom."""
    if degrees == 0:
        return math.inf
    limit = _rising(lambda x: 1.0 - survival(x, degrees), 1.0 - level)
    return _rising(lambda shift: survival_of_shifted(limit, degrees, shift), POWER)


def _rising(function: Callable[[float], float], wanted: float) -> float:
    """Return where a rising function of x >= 0 takes a value, by bisection."""
    low, high = 0.0, 1.0
    while function(high) < wanted:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return high
