"""What a lone session's forward of so many rows takes, compared with others of other numbers of rows.

That is no straight line: on a processor core the fourth row was measured to cost a sixth of a forward, and the fifth
next to nothing. But it stays as it is, while how fast a machine runs changes by the minute. So numbers of rows are
compared where one follows another, and how they compare is remembered for long. Compared is the second of a kind:
beside the first one the drafter still works as hard as before, and takes from what both share.
"""

from collections.abc import Callable

from orchestrator.policy.auto.fit import Mean

MOST_ROWS = 17
"""Of the most draft tokens that are ever chosen, and one more."""
PACE_GAIN = 0.1
"""How much of a forward's own pace goes into that of lately."""
HALF_LIFE = 64
"""In comparisons."""
DOUBT = 4.0
"""Comparisons until they weigh as much as a line."""
MOST_OFF = 1.4
"""What is farther off than so is an accident."""
ODD_IN_A_ROW = 4
"""So many accidents in a row are none."""
SHARE_KEPT = 0.5 ** (1 / 120)
"""Of how often each number of rows was seen, with each forward."""
LEAST_SHARE = 1e-6
"""Of all that are known: what was in use longer ago says nothing of the line."""


class Widths:
    """Forwards of up to ``MOST_ROWS`` rows; of wider ones nothing is known."""

    def __init__(self) -> None:
        self._pace_us = self._pace_before_us = 0.0
        self._last_rows = self._num_alike = 0
        self._shape = [Mean(HALF_LIFE) for _ in range(MOST_ROWS + 1)]
        """Microseconds of a forward over the pace of then."""
        self._counts, self._num_odd = [0] * (MOST_ROWS + 1), [0] * (MOST_ROWS + 1)
        self._shares = [0.0] * (MOST_ROWS + 1)

    def add(self, rows: int, us: float) -> None:
        """Take in that a forward of ``rows`` took ``us``."""
        if rows > MOST_ROWS:
            return
        self._pace_us = self._pace_us or us
        if rows != self._last_rows:
            self._last_rows, self._num_alike, self._pace_before_us = rows, 0, self._pace_us
        self._num_alike += 1
        if self._num_alike == 2:
            self._compare(rows, us / self._pace_before_us)
        if self._shape[rows].known:
            self._pace_us *= _within(us / self._pace_us / self._shape[rows].value) ** PACE_GAIN
        self._shares = [share * SHARE_KEPT for share in self._shares]
        self._shares[rows] += 1

    def _compare(self, rows: int, ratio: float) -> None:
        known = self._shape[rows]
        is_odd = known.known and _within(ratio / known.value) != ratio / known.value
        self._num_odd[rows] = self._num_odd[rows] + 1 if is_odd else 0
        if self._num_odd[rows] >= ODD_IN_A_ROW:
            self._shape[rows], self._counts[rows], self._num_odd[rows], is_odd = Mean(HALF_LIFE), 0, 0, False
        if not is_odd:
            self._shape[rows].add(ratio)
            self._counts[rows] += 1

    def ratios(self, line_us: Callable[[int], float]) -> tuple[float, ...]:
        """Return by the number of rows what a forward takes in units of what a line says, which is right on average.

        Args:
            line_us: what it says, by the number of rows.
        """
        seen = [rows for rows in range(1, MOST_ROWS + 1) if self._counts[rows]]
        share = sum(self._shares[rows] for rows in seen)
        if share < LEAST_SHARE:
            return ()
        ratios = {rows: self._shape[rows].value / line_us(rows) for rows in seen}
        mean = sum(self._shares[rows] * ratios[rows] for rows in seen) / share
        return tuple(self._drawn(rows, ratios.get(rows, mean) / mean) for rows in range(MOST_ROWS + 1))

    def _drawn(self, rows: int, ratio: float) -> float:
        weight = self._counts[rows] / (self._counts[rows] + DOUBT)
        return 1 + weight * (_within(ratio) - 1)


def _within(ratio: float) -> float:
    return min(max(ratio, 1 / MOST_OFF), MOST_OFF)
