"""Pearson's chi-square test of counts against a law, cells of small expectation pooled."""

from collections.abc import Hashable, Mapping

import torch

MIN_EXPECTED = 5.0


def p_value(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """Return the probability of a deviation at least this large where ``counts`` really follow ``law``.

    An outcome that the law gives no probability makes it 0.
    """
    total = sum(counts.values())
    if any(law.get(outcome, 0.0) <= 0.0 for outcome, count in counts.items() if count):
        return 0.0
    cells: list[tuple[float, float]] = []
    pooled_observed = pooled_expected = 0.0
    for outcome, probability in sorted(law.items(), key=lambda item: item[1]):
        observed, expected = counts.get(outcome, 0), probability * total
        if expected < MIN_EXPECTED:
            pooled_observed, pooled_expected = pooled_observed + observed, pooled_expected + expected
        else:
            cells.append((observed, expected))
    if pooled_expected > 0:
        cells.append((pooled_observed, pooled_expected))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    half_degrees = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
