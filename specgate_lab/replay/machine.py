"""Two services in simulated time: batching as the real ones do, with no noise."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.types import MAX_GAMMA, ForwardCost, check_range


class Forward(NamedTuple):
    """One forward: its sessions and rows, and its time."""

    sessions: int
    rows: int
    us: float


Done = Callable[[Forward], None]


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """Times, in microseconds.

    A forward of the target takes ``forward_us``, ``session_us`` for each session after the first, and ``row_us`` for
    each row after a session's first; a draft step ``draft_us``, and ``draft_session_us`` for each session after the
    first. A message and its answer take ``network_us``.
    """

    forward_us: float
    session_us: float
    row_us: float
    draft_us: float
    draft_session_us: float
    network_us: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_range(name, getattr(self, name), 0.0, 1e9)
        check_range("forward_us", self.forward_us, 1.0, 1e9)

    def measured_costs(self) -> MeasuredCosts:
        """Return the costs that services on it would report."""
        target = (ForwardCost(rows, round(self.forward_us + self.row_us * (rows - 1))) for rows in (1, MAX_GAMMA))
        return MeasuredCosts(tuple(target), (ForwardCost(1, round(self.draft_us)),))


@dataclass(slots=True)
class Clock:
    """Simulated time, and its events in order."""

    now_us: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)

    def after(self, delay_us: float, call: Callable[[], None]) -> None:
        heappush(self._events, (self.now_us + delay_us, next(self._order), call))

    def run(self) -> None:
        """Run until no event is left."""
        while self._events:
            self.now_us, _, call = heappop(self._events)
            call()


class Device:
    """Runs all rows that are ready in one forward, then the next.

    Args:
        base_us, session_us, row_us: a forward takes ``base_us``, ``session_us`` for each session after the first and
            ``row_us`` for each row after a session's first.
    """

    def __init__(self, clock: Clock, base_us: float, session_us: float, row_us: float) -> None:
        self._clock = clock
        self._base_us = base_us
        self._session_us = session_us
        self._row_us = row_us
        self._ready: deque[tuple[int, Done]] = deque()
        self._busy = False

    def submit(self, rows: int, done: Done) -> None:
        """Queue ``rows`` of one session; what arrives at the same moment shares a forward."""
        self._ready.append((rows, done))
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._start)

    def _start(self) -> None:
        batch, self._ready = list(self._ready), deque()
        rows = sum(rows for rows, _ in batch)
        us = self._base_us + self._session_us * (len(batch) - 1) + self._row_us * (rows - len(batch))
        forward = Forward(len(batch), rows, us)
        self._clock.after(forward.us, lambda: self._end(forward, [done for _, done in batch]))

    def _end(self, forward: Forward, waiting: Sequence[Done]) -> None:
        for done in waiting:
            done(forward)
        self._busy = bool(self._ready)
        if self._busy:
            self._clock.after(0.0, self._start)
