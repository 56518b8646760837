"""Straight lines through what was measured lately: least squares that forget, and that outliers cannot move far."""

from collections.abc import Sequence

OUTLIER_FACTOR = 3.0
TRUSTED_COUNT = 8
"""Measurements before an outlier is known as one."""


class Mean:
    """The mean of what was measured lately; an outlier counts as less far off. 0 before the first measurement."""

    __slots__ = ("_count", "_share", "value")

    def __init__(self, half_life: float) -> None:
        self._share = 1 - 0.5 ** (1 / half_life)
        self._count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        if self._count > TRUSTED_COUNT:
            value = min(value, OUTLIER_FACTOR * self.value + 1)
        self.value += max(self._share, 1 / self._count) * (value - self.value)


class Sums:
    """Normal equations of least squares over measurements that lose half their weight every ``half_life`` of them."""

    __slots__ = ("_decay", "count", "gram", "moment")

    def __init__(self, num_features: int, half_life: float) -> None:
        self._decay = 0.5 ** (1 / half_life)
        self.gram = [[0.0] * num_features for _ in range(num_features)]
        self.moment = [0.0] * num_features
        self.count = 0

    def add(self, features: Sequence[float], value: float) -> None:
        self.count += 1
        for row, (gram_row, feature) in enumerate(zip(self.gram, features, strict=True)):
            for column, other in enumerate(features):
                gram_row[column] = gram_row[column] * self._decay + feature * other
            self.moment[row] = self.moment[row] * self._decay + feature * value


class Line:
    """value = coefficients . features, from several ``Sums`` that forget at their own pace.

    Args:
        num_features: of one measurement.
        priors: rows that the coefficients should make 0, each with its weight in measurements. They have no unit,
            so they hold for microseconds and for hours.
        groups: measurements of one group push out their own kind only.
    """

    def __init__(
        self, num_features: int, priors: Sequence[tuple[Sequence[float], float]], half_life: float, groups: int = 1
    ) -> None:
        self._priors = priors
        self._groups = [Sums(num_features, half_life) for _ in range(groups)]
        self._coefficients = [0.0] * num_features
        self._stale = False

    @property
    def count(self) -> int:
        return sum(sums.count for sums in self._groups)

    @property
    def coefficients(self) -> list[float]:
        if self._stale:
            self._coefficients, self._stale = self._solve(), False
        return self._coefficients

    def at(self, features: Sequence[float]) -> float:
        """Return the value on the line."""
        return sum(c * feature for c, feature in zip(self.coefficients, features, strict=True))

    def add(self, features: Sequence[float], value: float, group: int = 0) -> None:
        """Take a measurement in; one far off the line counts as less far off."""
        if self._groups[group].count >= TRUSTED_COUNT and (expected := self.at(features)) > 0:
            value = min(max(value, expected / OUTLIER_FACTOR), expected * OUTLIER_FACTOR)
        self._groups[group].add(features, value)
        self._stale = True

    def _solve(self) -> list[float]:
        size = len(self._coefficients)
        gram = [[sum(sums.gram[row][col] for sums in self._groups) for col in range(size)] for row in range(size)]
        moment = [sum(sums.moment[row] for sums in self._groups) for row in range(size)]
        for features, weight in self._priors:
            for row in range(size):
                for col in range(size):
                    gram[row][col] += weight * features[row] * features[col]
        return solved(gram, moment)


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
