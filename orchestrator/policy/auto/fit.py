"""Least squares with exponential forgetting and a prior."""

MOST_OFF = 4.0
"""A measurement counts as at most this many times its expectation; an outlier is no cost."""


class Line:
    """Ridge regression of y = c₁ x₁ + c₂ x₂. Older measurements weigh less; no coefficient is negative.

    Args:
        prior: the coefficients before the first measurement.
        weights: of the prior, in measurements with x = 1.
        half_life: in measurements.
    """

    def __init__(self, prior: tuple[float, float], weights: tuple[float, float], half_life: float) -> None:
        self._prior, self._weights, self._keep = prior, weights, 0.5 ** (1 / half_life)
        self._sums = [0.0] * 5
        """Of x₁², x₁x₂, x₂², x₁y and x₂y."""

    def draw_to(self, prior: tuple[float, float], weights: tuple[float, float]) -> None:
        """Replace the prior and keep the measurements."""
        self._prior, self._weights = prior, weights

    def add(self, x: tuple[float, float], y: float, weight: float = 1.0) -> None:
        """Add one measurement, limited to ``MOST_OFF`` times its expectation."""
        expected = sum(one * known for one, known in zip(x, self.solve(), strict=True))
        y = min(y, MOST_OFF * max(expected, x[0]))
        keep = self._keep**weight
        products = (x[0] * x[0], x[0] * x[1], x[1] * x[1], x[0] * y, x[1] * y)
        self._sums = [old * keep + weight * new for old, new in zip(self._sums, products, strict=True)]

    def solve(self) -> tuple[float, float]:
        """Return the current coefficients."""
        xx11, xx12, xx22, xy1, xy2 = self._sums
        xx11, xy1 = xx11 + self._weights[0], xy1 + self._weights[0] * self._prior[0]
        xx22, xy2 = xx22 + self._weights[1], xy2 + self._weights[1] * self._prior[1]
        determinant = xx11 * xx22 - xx12 * xx12
        first, second = (xy1 * xx22 - xy2 * xx12) / determinant, (xy2 * xx11 - xy1 * xx12) / determinant
        if first < 0:
            return 0.0, max(xy2 / xx22, 0.0)
        if second < 0:
            return max(xy1 / xx11, 0.0), 0.0
        return first, second
