"""What a forward takes for the sessions that share it, and for their rows.

A further session costs more than a further row of one that is in it: its keys and values are read, its token is
picked. And the second one costs more than the eighth: a matrix product of one row leaves a processor idle, one of many
does not. So sessions are priced on a line with bends.
Nor are a lone session's rows on a line (``widths.py``).
"""

from itertools import pairwise
from typing import NamedTuple

from orchestrator.policy.auto.fit import Line
from orchestrator.policy.auto.widths import Widths

PRICED_FROM = (1, 4)
"""Behind so many sessions a further one has a price of its own. Measured on a processor core; more would be known too
little."""
ROW_SHARE, SESSION_SHARE = 0.05, 0.1
"""What a further row, and the second session, costs, in forwards, until it is measured."""
BEND_WEIGHT = 0.1
"""In measurements: how much it takes to bend the line."""
MIN_FORWARDS = 16
"""The first ones of a process take longer, whatever their rows."""
NARROW_ROWS = 2
"""A session's forward of so many rows is remembered apart from wider ones, which would push it out."""


class ForwardPrices(NamedTuple):
    """In microseconds: one row of one session; a further session, behind each of ``PRICED_FROM``; a further row.

    ``ratios``: of a lone session's forward to all that, by its number of rows; those beyond are as dear as they say.
    """

    base_us: float
    session_us: tuple[float, ...]
    row_us: float
    ratios: tuple[float, ...] = ()

    def forward(self, rows: float, sessions: float = 1.0, lone_us: float | None = None) -> float:
        """Return what a forward of ``rows``, those of all its sessions together, takes.

        Args:
            lone_us: what a lone session's takes more than the line says; None: as much as of that many rows.
        """
        if lone_us is None:
            lone_us = self.lone_us(round(rows / sessions))
        # Between one session and two there is a bit of either.
        return max(self._straight(rows, sessions) + max(2.0 - sessions, 0.0) * lone_us, 1.0)

    def lone_us(self, rows: int) -> float:
        """Return what a lone session's forward of ``rows`` takes more than the line says, or less if negative."""
        return (self.ratios[rows] - 1) * self._straight(rows) if rows < len(self.ratios) else 0.0

    def _straight(self, rows: float, sessions: float = 1.0) -> float:
        us = self.base_us + self.row_us * (rows - sessions)
        for num_sessions, each_us in zip(_by_price(sessions), self.session_us, strict=True):
            us += num_sessions * each_us
        return us


class Forwards:
    """Learns what forwards take.

    Args:
        half_life: in forwards, narrow and wide ones each.
    """

    def __init__(self, half_life: float) -> None:
        self._line = Line(len(PRICED_FROM) + 2, tuple(_guesses()), half_life, groups=2)
        self._widths = Widths()

    def add(self, rows: int, sessions: int, us: float, weight: float = 1.0) -> None:
        """Take in that a forward of ``rows`` of so many sessions took ``us``, if one of them tells: a share of that."""
        features = (1, *_by_price(sessions), rows - sessions)
        self._line.add(features, us, group=rows > NARROW_ROWS * sessions, weight=weight)
        if sessions == 1 and self._line.count >= MIN_FORWARDS:
            self._widths.add(rows, us)

    @property
    def row_us(self) -> float:
        """What a further row takes; it may lack the last measurements."""
        return self._line.lately[-1]

    @property
    def prices(self) -> ForwardPrices:
        """Of this moment."""
        base_us, *session_us, row_us = self._line.coefficients
        # From forwards of many sessions alone a line may begin near 0.
        straight = ForwardPrices(max(base_us, session_us[0]), tuple(session_us), row_us)
        return straight._replace(ratios=self._widths.ratios(straight.forward))


def _by_price(sessions: float) -> list[float]:
    """Return to how many of the sessions, but the first, each price goes."""
    between = [min(max(sessions - start, 0), end - start) for start, end in pairwise(PRICED_FROM)]
    return [*between, max(sessions - PRICED_FROM[-1], 0)]


def _guesses() -> list[tuple[tuple[float, ...], float]]:
    """Return the shares of a forward that are expected, and that the line has no bend."""
    num_prices = len(PRICED_FROM)
    straight = [
        (0.0, *(float((price == bend) - (price == bend - 1)) for price in range(num_prices)), 0.0)
        for bend in range(1, num_prices)
    ]
    second = (-SESSION_SHARE, 1.0, *[0.0] * num_prices)
    row = (-ROW_SHARE, *[0.0] * num_prices, 1.0)
    return [(row, 1.0), (second, 1.0), *((one, BEND_WEIGHT) for one in straight)]
