"""The chi-square distribution, and how large a deviation a test of it would find. Pure Python."""

import math
from collections.abc import Callable

POWER = 0.9
"""What is called findable is found this often."""
_TINY = 1e-300
_PRECISION = 1e-15
_MOST_STEPS = 100_000


def survival(statistic: float, degrees: int) -> float:
    """Return the probability that chi-square with ``degrees`` of freedom is at least ``statistic``."""
    if degrees == 0 or statistic <= 0.0:
        return 1.0
    half, x = degrees / 2, statistic / 2
    scale = math.exp(half * math.log(x) - x - math.lgamma(half))
    return 1.0 - scale * _lower_series(half, x) if x < half + 1.0 else scale * _upper_fraction(half, x)


def _lower_series(a: float, x: float) -> float:
    """The lower incomplete gamma function over x^a e^-x; converges fast below a + 1 (Abramowitz, Stegun 6.5.29)."""
    term = total = 1.0 / a
    while term > total * _PRECISION:
        a += 1.0
        term *= x / a
        total += term
    return total


def _upper_fraction(a: float, x: float) -> float:
    """The upper incomplete gamma function over x^a e^-x; converges fast above a + 1 (ibid. 6.5.31, Lentz's method)."""
    b = x + 1.0 - a
    c, d = 1.0 / _TINY, 1.0 / b
    value = d
    for i in range(1, _MOST_STEPS):
        factor = -i * (i - a)
        b += 2.0
        d = 1.0 / (factor * d + b or _TINY)
        c = b + factor / c or _TINY
        step = c * d
        value *= step
        if abs(step - 1.0) < 10 * _PRECISION:
            break
    return value


def survival_of_shifted(statistic: float, degrees: int, shift: float) -> float:
    """Return the same where the law is not the supposed one: non-central chi-square, a Poisson mixture."""
    mean = shift / 2
    spread = 10.0 * math.sqrt(mean) + 20.0
    terms = range(max(0, int(mean - spread)), int(mean + spread) + 1)
    weights = (math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean else float(j == 0) for j in terms)
    return sum(weight * survival(statistic, degrees + 2 * j) for j, weight in zip(terms, weights, strict=True))


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
