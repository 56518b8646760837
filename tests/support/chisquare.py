"""Pearson's chi-square test of counts against a law, and the law of a text from that of its next token."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import torch

MIN_EXPECTED = 5.0

Text = tuple[int, ...]


def joint_law(
    next_law: Callable[[Text], Sequence[float]], max_tokens: int, stop_token_ids: Collection[int] = ()
) -> dict[Text, float]:
    """Return the probability of every text that ends at a stop token or at ``max_tokens``."""
    law: dict[Text, float] = {}

    def extend(text: Text, probability: float) -> None:
        if len(text) == max_tokens or (text and text[-1] in stop_token_ids):
            law[text] = probability
            return
        for token_id, p in enumerate(next_law(text)):
            if p > 0:
                extend((*text, token_id), probability * p)

    extend((), 1.0)
    return law


def p_value(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """Return the probability of a deviation at least this large where ``counts`` really follow ``law``.

    Cells of small expectation are pooled. An outcome that the law gives no probability makes it 0.
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
