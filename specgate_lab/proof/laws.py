"""Tests of samples against a law, and of two samples against each other, with the deviation that each would find.

Cells are pooled by the law, or by both samples together, never by the difference of the two sides.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

LEVEL = 0.001
"""A sound pair fails one proof in a thousand at the most, however many tests there are."""
POWER = 0.9
"""What is called findable is found this often."""
MIN_EXPECTED = 5.0
"""Below it the chi-square distribution is no good approximation of a cell."""
LAST_RANKS = (1, 2, 3, 4, 6, 10, 20)
"""Of the cells of ``rank_test``, 1 being the likeliest token; all later ranks are one more cell."""

Text = tuple[int, ...]
Law = tuple[tuple[int, float], ...]
"""The likeliest token ids with their probabilities, best first; the rest of the vocabulary is one cell."""


@dataclass(frozen=True, slots=True)
class LawTest:
    """One chi-square test. ``weight`` is the effective number of samples: n of one law, n m / (n + m) of two samples.

    ``corrected_p`` is Holm's, over all tests of the proof; ``findable`` the smallest total variation that the test
    finds nine times in ten, between 0 and 1.
    """

    name: str
    samples: int
    weight: float
    cells: int
    statistic: float
    p: float
    corrected_p: float = 1.0
    findable: float = math.inf

    @property
    def degrees(self) -> int:
        return max(self.cells - 1, 0)

    def to_object(self) -> dict[str, Any]:
        """Return it as JSON has it, with null where nothing is findable: JSON has no infinity."""
        findable = self.findable if math.isfinite(self.findable) else None
        names = ("name", "samples", "cells", "statistic", "p", "corrected_p")
        return {**{name: getattr(self, name) for name in names}, "degrees": self.degrees, "findable": findable}


def first_token_test(name: str, counts: Mapping[int, int], law: Law) -> LawTest:
    """Test how often each token came first against the target's own probabilities."""
    total = sum(counts.values())
    cells: list[tuple[float, float]] = []
    for token_id, probability in law:
        if probability * total >= MIN_EXPECTED:
            cells.append((counts.get(token_id, 0), probability * total))
    observed, expected = total - sum(cell[0] for cell in cells), total - sum(cell[1] for cell in cells)
    if expected >= MIN_EXPECTED or not cells:
        cells.append((observed, expected))
    else:
        cells[-1] = (cells[-1][0] + observed, cells[-1][1] + expected)
    statistic = sum((seen - due) ** 2 / due for seen, due in cells) if len(cells) > 1 else 0.0
    return _test(name, total, float(total), len(cells), statistic)


def two_sample_test(name: str, ours: Sequence[Text], theirs: Sequence[Text]) -> LawTest:
    """Test whether two samples of texts have one law. Rare texts are pooled with those that begin as they do."""
    cell_of = pooled_by_prefix(Counter(ours) + Counter(theirs), 2 * MIN_EXPECTED)
    left, right = Counter(cell_of[text] for text in ours), Counter(cell_of[text] for text in theirs)
    share = len(ours) / (len(ours) + len(theirs))
    both = left + right
    # Pearson's sum over both rows of a cell, in one fraction.
    gaps = ((left[cell] - share * both[cell]) ** 2 / (share * (1 - share) * both[cell]) for cell in both)
    return _test(name, len(ours) + len(theirs), len(ours) * (1 - share), len(both), sum(gaps))


def pooled_by_prefix(counts: Mapping[Text, int], least: float) -> dict[Text, Text]:
    """Return each text's cell: itself, or its longest beginning under which enough rare ones come together.

    What is left over at the empty beginning, where it is still too little, joins the smallest cell.
    """
    cell_of = {text: text for text in counts}
    for length in range(max(map(len, counts), default=0), 0, -1):
        totals = _totals(counts, cell_of)
        for text, cell in cell_of.items():
            if len(cell) == length and totals[cell] < least:
                cell_of[text] = cell[:-1]
    totals = _totals(counts, cell_of)
    if () in totals and totals[()] < least and len(totals) > 1:
        smallest = min((cell for cell in totals if cell), key=lambda cell: (totals[cell], cell))
        cell_of = {text: cell or smallest for text, cell in cell_of.items()}
    return cell_of


def _totals(counts: Mapping[Text, int], cell_of: Mapping[Text, Text]) -> Counter[Text]:
    totals: Counter[Text] = Counter()
    for text, cell in cell_of.items():
        totals[cell] += counts[text]
    return totals


def rank_test(name: str, seen: Sequence[tuple[int, Law]]) -> LawTest:
    """Test which rank the emitted tokens have in the target's order, each against the law at its own position.

    Given what comes before it, a token's rank has a law that is known; sums of such deviations over many different
    positions are normal, with the sum of their covariances (a martingale), whatever the positions are.

    Args:
        seen: token ids, each with the target's law at its position.
    """
    probs = [_cell_probs(law) for _, law in seen]
    observed = Counter(_cell(token_id, law) for token_id, law in seen)
    expected = [sum(column) for column in zip(*probs, strict=True)]
    groups = _groups(expected)
    gaps = [sum(observed[cell] - expected[cell] for cell in group) for group in groups]
    covariance = _covariance([[sum(row[cell] for cell in group) for group in groups] for row in probs])
    # The deviations sum to zero: the last one says nothing new.
    statistic = _quadratic_form([row[:-1] for row in covariance[:-1]], gaps[:-1])
    return _test(name, len(seen), float(len(seen)), len(groups), statistic)


def _cell(token_id: int, law: Law) -> int:
    rank = next((rank for rank, (known, _) in enumerate(law, start=1) if known == token_id), LAST_RANKS[-1] + 1)
    return sum(rank > last for last in LAST_RANKS)


def _cell_probs(law: Law) -> list[float]:
    known = [probability for _, probability in law]
    inside = [sum(known[start:end]) for start, end in pairwise((0, *LAST_RANKS))]
    return [*inside, max(0.0, 1.0 - sum(inside))]


def _groups(expected: Sequence[float]) -> list[list[int]]:
    """Join neighbouring cells, the last ones first, until each is due often enough."""
    groups = [[cell] for cell in range(len(expected))]
    index = len(groups) - 1
    while index > 0:
        if sum(expected[cell] for cell in groups[index]) < MIN_EXPECTED:
            groups[index - 1] += groups.pop(index)
        index -= 1
    if len(groups) > 1 and sum(expected[cell] for cell in groups[0]) < MIN_EXPECTED:
        groups[0] += groups.pop(1)
    return groups


def _covariance(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Sum of diag(p) - p pᵀ over the rows."""
    cells = range(len(rows[0])) if rows else range(0)
    return [[math.fsum((p[i] if i == j else 0.0) - p[i] * p[j] for p in rows) for j in cells] for i in cells]


def _quadratic_form(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> float:
    """Return xᵀ M⁻¹ x of a positive definite matrix, by Gaussian elimination."""
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    total = 0.0
    for index, pivot in enumerate(rows):
        total += pivot[-1] ** 2 / pivot[index]
        for row in rows[index + 1 :]:
            factor = row[index] / pivot[index]
            row[:] = [value - factor * above for value, above in zip(row, pivot, strict=True)]
    return total


def _test(name: str, samples: int, weight: float, cells: int, statistic: float) -> LawTest:
    return LawTest(name, samples, weight, cells, statistic, survival(statistic, max(cells - 1, 0)))


def corrected(tests: Sequence[LawTest]) -> list[LawTest]:
    """Return the tests with Holm's corrected p, in the order given, and with what each of them would find.

    Mass moved between cells is hardest to find between two halves: a total variation of d makes the statistic
    grow by 4 d² a sample there, and by more anywhere else.
    """
    largest = 0.0
    done: dict[int, LawTest] = {}
    for place, index in enumerate(sorted(range(len(tests)), key=lambda index: tests[index].p)):
        test = tests[index]
        largest = max(largest, min(1.0, (len(tests) - place) * test.p))
        shift = findable_shift(test.degrees, LEVEL / len(tests))
        findable = math.sqrt(shift / (4 * test.weight)) if test.weight else math.inf
        # Where even all mass could move unseen, nothing is findable.
        done[index] = replace(test, corrected_p=largest, findable=findable if findable <= 1.0 else math.inf)
    return [done[index] for index in range(len(tests))]


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
