"""Means and straight lines of what was measured lately. They forget; outliers cannot move them far, but restart them
where nothing else comes.
"""

import math
from collections.abc import Sequence
from operator import mul

OUTLIER_FACTOR = 3.0
TRUSTED_COUNT = 8
"""Measurements before an outlier is known as one."""
ODD_IN_A_ROW = 16
"""So many outliers, with nothing between them, are no outliers: what is measured has changed, or was never right."""
SOLVE_EVERY = 8
"""Measurements that are told from outliers by one and the same line: solving takes longer than measuring."""


class Mean:
    """The mean of what was measured lately; one far off counts as less far off. 0 before the first measurement."""

    __slots__ = ("_count", "_num_odd", "_share", "value")

    def __init__(self, half_life: float) -> None:
        self._share = 1 - 0.5 ** (1 / half_life)
        self._count = self._num_odd = self.value = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._count > 0

    def drawn(self, expected: float, weight: float) -> float:
        """Return the mean, drawn to what is ``expected`` as if that had been measured ``weight`` times."""
        return (weight * expected + self._count * self.value) / (weight + self._count)

    def add(self, value: float, within: float | None = None, weight: float = 1.0) -> None:
        """Take a measurement in, or a share of one.

        Args:
            within: how far off one may be; None, for what cannot be negative: up to three times, or a third.
        """
        if within is None:
            low, high = self.value / OUTLIER_FACTOR - 1, OUTLIER_FACTOR * self.value + 1
        else:
            low, high = self.value - within, self.value + within
        is_odd = self._count >= TRUSTED_COUNT and not low <= value <= high
        self._num_odd = self._num_odd + weight if is_odd else 0.0
        if self._num_odd >= ODD_IN_A_ROW:
            self._count = self._num_odd = 0.0
        elif is_odd:
            value = min(value, high) if within is None else min(max(value, low), high)
        self._count += weight
        self.value += weight * max(self._share, 1 / self._count) * (value - self.value)


class Sums:
    """Normal equations of least squares over measurements that lose half their weight every ``half_life`` of them."""

    __slots__ = ("_decay", "count", "gram", "moment", "num_odd")

    def __init__(self, num_features: int, half_life: float) -> None:
        self._decay = 0.5 ** (1 / half_life)
        self.gram = [[0.0] * num_features for _ in range(num_features)]
        self.moment = [0.0] * num_features
        self.count = self.num_odd = 0.0

    def add(self, features: Sequence[float], value: float, weight: float = 1.0) -> None:
        self.count += weight
        decay = self._decay**weight
        for row, (gram_row, feature) in enumerate(zip(self.gram, features, strict=True)):
            weighted = weight * feature
            for column, other in enumerate(features):
                gram_row[column] = gram_row[column] * decay + weighted * other
            self.moment[row] = self.moment[row] * decay + weighted * value

    def drawn(self, weights: Sequence[float], centre: Sequence[float]) -> list[float]:
        """Return the coefficients, each drawn to its ``centre`` by so much weight (ridge regression)."""
        gram = [list(row) for row in self.gram]
        for index, weight in enumerate(weights):
            gram[index][index] += weight
        moment = [known + weight * value for known, weight, value in zip(self.moment, weights, centre, strict=True)]
        return solved(gram, moment)


class Line:
    """value = coefficients . features, from several ``Sums`` that forget at their own pace.

    Args:
        num_features: of one measurement.
        priors: rows that the coefficients should make 0, each with its weight in measurements. They have no unit,
            so they hold for microseconds and for hours.
        groups: measurements of one group push out their own kind only.
    """

    def __init__(
        self,
        num_features: int,
        priors: Sequence[tuple[Sequence[float], float]],
        half_life: float,
        groups: int = 1,
    ) -> None:
        self._priors = priors
        self._half_life = half_life
        self._groups = [Sums(num_features, half_life) for _ in range(groups)]
        self._coefficients = [0.0] * num_features
        self._num_unsolved = 0

    @property
    def count(self) -> float:
        return sum(sums.count for sums in self._groups)

    @property
    def coefficients(self) -> list[float]:
        if self._num_unsolved:
            self._coefficients, self._num_unsolved = self._solve(), 0
        return self._coefficients

    @property
    def lately(self) -> list[float]:
        """Coefficients that may lack the last measurements: solving takes time. Of few none is missing."""
        is_recent = 2 * self._num_unsolved < min(self.count, 2 * SOLVE_EVERY)
        return self._coefficients if is_recent else self.coefficients

    def add(self, features: Sequence[float], value: float, group: int = 0, weight: float = 1.0) -> None:
        """Take a measurement in, or a share of one; one far off the line counts as less far off."""
        sums = self._groups[group]
        if sums.count >= TRUSTED_COUNT and (expected := self.about(features)) > 0:
            within = min(max(value, expected / OUTLIER_FACTOR), expected * OUTLIER_FACTOR)
            sums.num_odd = 0.0 if within == value else sums.num_odd + weight
            if sums.num_odd >= ODD_IN_A_ROW:
                sums = self._groups[group] = Sums(len(features), self._half_life)
            else:
                value = within
        sums.add(features, value, weight)
        self._num_unsolved += 1

    def about(self, features: Sequence[float]) -> float:
        """Return the value on a line that may lack the last measurements."""
        return _dot(self.lately, features)

    def _solve(self) -> list[float]:
        size = len(self._coefficients)
        gram = [[sum(sums.gram[row][col] for sums in self._groups) for col in range(size)] for row in range(size)]
        moment = [sum(sums.moment[row] for sums in self._groups) for row in range(size)]
        for features, weight in self._priors:
            for row in range(size):
                for col in range(size):
                    gram[row][col] += weight * features[row] * features[col]
        return nonnegative(gram, moment)


def _dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return math.fsum(map(mul, coefficients, features))


def nonnegative(gram: Sequence[Sequence[float]], moment: Sequence[float]) -> list[float]:
    """Return the least squares without the features that would be counted negative: nothing gives time back."""
    kept = list(range(len(moment)))
    while True:
        found = solved([[gram[row][col] for col in kept] for row in kept], [moment[row] for row in kept])
        negative = [place for place, index in enumerate(kept) if found[place] < 0]
        if not negative or len(kept) == 1:
            break
        del kept[min(negative, key=found.__getitem__)]
    solution = [0.0] * len(moment)
    for index, value in zip(kept, found, strict=True):
        solution[index] = max(value, 0.0)
    return solution


def solved(matrix: list[list[float]], right: Sequence[float]) -> list[float]:
    """Return x with ``matrix`` x = ``right``, for a symmetric positive definite matrix."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for pivot in range(len(rows)):
        for below in rows[pivot + 1 :]:
            factor = below[pivot] / rows[pivot][pivot]
            for col in range(pivot, len(below)):
                below[col] -= factor * rows[pivot][col]
    solution = [0.0] * len(rows)
    for index in reversed(range(len(rows))):
        known = sum(rows[index][col] * solution[col] for col in range(index + 1, len(rows)))
        solution[index] = (rows[index][-1] - known) / rows[index][index]
    return solution
