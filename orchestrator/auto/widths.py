"""What a lone session's forward of so many rows takes, compared with others of other numbers of rows.

That is no straight line: on a processor core the fourth row was measured to cost a sixth of a forward, and the fifth
next to nothing. But it stays as it is, while how fast a machine runs changes by the minute. So the two are learned
apart: a shape that is remembered, and a pace that is not.
"""

from collections.abc import Callable

from orchestrator.auto.fit import Mean

MOST_ROWS = 17
PACE_HALF_LIFE, SHAPE_HALF_LIFE = 30, 256
"""In forwards of any number of rows, and of this one."""
FIRST_COUNT = 4
"""Forwards of so many rows before they say anything of the pace."""
DOUBT = 4.0
"""Forwards of so many rows until what was seen of them weighs as much as a line."""
MOST_OFF = 1.4
"""What is farther off than so is an accident, or the pace that changed."""
SHARE_KEPT = 0.5 ** (1 / 120)
"""Of how often each number of rows was seen, with each forward."""


class Widths:
    """Forwards of up to ``MOST_ROWS`` rows; of wider ones nothing is known."""

    def __init__(self) -> None:
        self._pace = Mean(PACE_HALF_LIFE)
        self._shape = [Mean(SHAPE_HALF_LIFE) for _ in range(MOST_ROWS + 1)]
        self._counts = [0] * (MOST_ROWS + 1)
        self._shares = [0.0] * (MOST_ROWS + 1)

    def add(self, rows: int, us: float) -> None:
        """Take in that a forward of ``rows`` took ``us``."""
        if rows > MOST_ROWS:
            return
        if not self._pace.known:
            self._pace.add(us)
        shape = self._shape[rows]
        if self._counts[rows] >= FIRST_COUNT:
            self._pace.add(us / shape.value)
        is_near = not self._counts[rows] or 1 / MOST_OFF <= us / self._pace.value / shape.value <= MOST_OFF
        if not is_near and self._counts[rows] < FIRST_COUNT:
            # So little was seen of it that the accident may have been before.
            shape, self._counts[rows] = Mean(SHAPE_HALF_LIFE), 0
            self._shape[rows], is_near = shape, True
        if is_near:
            shape.add(us / self._pace.value)
            self._counts[rows] += 1
        self._shares = [share * SHARE_KEPT for share in self._shares]
        self._shares[rows] += 1

    def ratios(self, line_us: Callable[[int], float]) -> tuple[float, ...]:
        """Return by the number of rows what a forward takes in units of what a line says, which is right on average.

        Args:
            line_us: what it says, by the number of rows.
        """
        seen = [rows for rows in range(1, MOST_ROWS + 1) if self._counts[rows]]
        if not seen:
            return ()
        ratios = {rows: self._shape[rows].value / line_us(rows) for rows in seen}
        mean = sum(self._shares[rows] * ratios[rows] for rows in seen) / sum(self._shares[rows] for rows in seen)
        return tuple(self._drawn(rows, ratios.get(rows, mean) / mean) for rows in range(MOST_ROWS + 1))

    def _drawn(self, rows: int, ratio: float) -> float:
        weight = self._counts[rows] / (self._counts[rows] + DOUBT)
        return 1 + weight * (min(max(ratio, 1 / MOST_OFF), MOST_OFF) - 1)
