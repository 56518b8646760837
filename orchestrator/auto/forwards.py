"""What a forward takes for the sessions that share it, and for their rows.

A further session costs more than a further row of one that is in it: its keys and values are read, its token is
picked. And the second one costs more than the eighth: a matrix product of one row leaves a processor idle, one of many
does not. So sessions are priced on a line with bends.
"""

from itertools import pairwise
from typing import NamedTuple

from orchestrator.auto.fit import Line

BENDS = (1, 4)
"""Sessions where the price of a further one may change."""
ROW_SHARE, SESSION_SHARE = 0.05, 0.1
"""What a further row, and the second session, costs, in forwards, until it is measured."""
BEND_WEIGHT = 0.1
"""In measurements: how much it takes to bend the line."""
NARROW_ROWS = 2
"""A session's forward of so many rows is remembered apart from wider ones, which would push it out."""


class ForwardPrices(NamedTuple):
    """In microseconds: one row of one session; a further session, from each of ``BENDS`` on; a further row of one."""

    base_us: float
    session_us: tuple[float, ...]
    row_us: float

    def forward(self, rows: float, sessions: float = 1.0) -> float:
        """Return what a forward of ``rows``, those of all its sessions together, takes."""
        us = self.base_us + self.row_us * (rows - sessions)
        for from_here, each_us in zip(_beyond_bends(sessions), self.session_us, strict=True):
            us += from_here * each_us
        return max(us, 1.0)


class Forwards:
    """Learns what forwards take.

    Args:
        half_life: in forwards, narrow and wide ones each.
    """

    def __init__(self, half_life: float) -> None:
        self._line = Line(len(BENDS) + 2, tuple(_guesses()), half_life, groups=2)

    def add(self, rows: int, sessions: int, us: float) -> None:
        """Take in that a forward of ``rows`` of so many sessions took ``us``; each of them tells of it."""
        features = (1, *_beyond_bends(sessions), rows - sessions)
        self._line.add(features, us, group=rows > NARROW_ROWS * sessions, weight=1 / sessions)

    @property
    def row_us(self) -> float:
        """What a further row takes; it may lack the last measurements."""
        return self._line.lately[-1]

    @property
    def prices(self) -> ForwardPrices:
        """Of this moment."""
        base_us, *session_us, row_us = self._line.coefficients
        # From forwards of many sessions alone a line may begin near 0.
        return ForwardPrices(max(base_us, session_us[0]), tuple(session_us), row_us)


def _beyond_bends(sessions: float) -> list[float]:
    """Return how many of the sessions lie between each bend and the next one, and behind the last."""
    between = [min(max(sessions - bend, 0), after - bend) for bend, after in pairwise(BENDS)]
    return [*between, max(sessions - BENDS[-1], 0)]


def _guesses() -> list[tuple[tuple[float, ...], float]]:
    """Return the shares of a forward that are expected, and that the line has no bend."""
    num_prices = len(BENDS)
    straight = [
        (0.0, *(float((price == bend) - (price == bend - 1)) for price in range(num_prices)), 0.0)
        for bend in range(1, num_prices)
    ]
    second = (-SESSION_SHARE, 1.0, *[0.0] * num_prices)
    row = (-ROW_SHARE, *[0.0] * num_prices, 1.0)
    return [(row, 1.0), (second, 1.0), *((one, BEND_WEIGHT) for one in straight)]
