"""Statistics of seeded draws against a law that is known."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import torch

MIN_EXPECTED = 5.0
"""Rarer outcomes are counted as one, or the chi-square approximation does not hold."""


def chi_square_p(draws: Iterable[Hashable], law: Mapping[Hashable, float]) -> float:
    """Return the p-value of Pearson's test that ``draws`` follow ``law``; 0 where one of them is impossible."""
    counts = Counter(draws)
    total = counts.total()
    if any(law.get(outcome, 0.0) <= 0.0 for outcome in counts):
        return 0.0
    cells = [(law[outcome] * total, counts[outcome]) for outcome in law]
    common = [cell for cell in cells if cell[0] >= MIN_EXPECTED]
    rare = [cell for cell in cells if cell[0] < MIN_EXPECTED]
    if rare:
        common.append((sum(expected for expected, _ in rare), sum(count for _, count in rare)))
    statistic = sum((count - expected) ** 2 / expected for expected, count in common if expected > 0)
    degrees = torch.tensor(len(common) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, torch.tensor(statistic / 2, dtype=torch.float64)))
