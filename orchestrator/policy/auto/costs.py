"""What a round costs, in microseconds: first what the services told when they loaded, then what verdicts tell."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from orchestrator.policy.auto.fit import Line
from specgate.types import ForwardCost, RoundRecord

HALF_LIFE = 100
"""In verdicts of each session: how fast a machine runs changes by the minute, as its neighbours come and go."""
MEASURED_WEIGHT, GUESS_WEIGHT = 8.0, 0.5
"""Measurements that what a service told, and what nobody told, is worth."""
GUESSED_SHARE = 0.1
"""Of a forward of one row, until more is known: a further row or session, a draft token, the way of a round."""
NUM_RECENT = 2 * HALF_LIFE
"""Verdicts whose sessions count as present, or four of each if that is more: one whose reader stopped is no load."""
BATCH_SHARE = 0.1
"""Of a session's next verdict in the mean of how many shared its forwards: not all of them are in each one."""


class _Seen(NamedTuple):
    """A session's last verdict, counted over all, and how many shared its forwards lately."""

    at: int
    batch: float


class MeasuredCosts(NamedTuple):
    """What the services measured when they loaded: forwards of some numbers of rows, fewest first; () where unknown."""

    target: Sequence[ForwardCost] = ()
    draft: Sequence[ForwardCost] = ()


def forward_us(costs: Sequence[ForwardCost], rows: float) -> float:
    """Return what a forward of ``rows`` takes, on straight lines between and beyond the widths that were measured."""
    if len(costs) == 1:
        (known_rows, known_us) = costs[0]
        return known_us * (1 + GUESSED_SHARE * (rows - 1)) / (1 + GUESSED_SHARE * (known_rows - 1))
    low, high = next(((a, b) for a, b in pairwise(costs) if rows <= b.rows), (costs[-2], costs[-1]))
    # No forward is faster for having more rows, whatever noise was measured.
    slope = max((high.forward_us - low.forward_us) / (high.rows - low.rows), 0.0)
    return max(low.forward_us + slope * (rows - low.rows), 1.0)


class Prices(NamedTuple):
    """The costs of one moment.

    A forward takes ``pace`` times what was told for its rows, and ``session_us`` for each session after the first. A
    round takes ``overhead_us`` and ``token_us`` a draft token besides its forward. ``sessions`` share the verifier. A
    lone session's token takes ``alone_us`` where nothing is drafted: a drafter that works beside the target takes time
    from the cores and the memory that both use.
    """

    target: Sequence[ForwardCost]
    pace: float
    session_us: float
    overhead_us: float
    token_us: float
    alone_us: float
    sessions: int = 1

    def forward_us(self, rows: float, sessions: float = 1.0) -> float:
        """Return what a forward takes that so many sessions share, with ``rows`` in all."""
        return max(self.pace * forward_us(self.target, rows) + self.session_us * (sessions - 1), 1.0)

    def can_pay(self, max_gamma: int) -> bool:
        """Return whether a draft that always agreed would be faster than the target alone."""
        round_us = {g: self.forward_us(g + 1) + self.overhead_us + self.token_us * g for g in range(1, max_gamma + 1)}
        return any(us < (gamma + 1) * self.forward_us(1) for gamma, us in round_us.items())


class Costs:
    """Learns prices from verdicts, and counts who is there.

    Args:
        measured: returns what the services told by now: a drafter may come later than the target.
    """

    def __init__(self, measured: Callable[[], MeasuredCosts]) -> None:
        self._ask_measured = measured
        self._measured = MeasuredCosts()
        self._target: Sequence[ForwardCost] = ()
        self._forward = Line((1.0, GUESSED_SHARE), (MEASURED_WEIGHT, GUESS_WEIGHT), HALF_LIFE)
        self._alone = Line((1.0, GUESSED_SHARE), (MEASURED_WEIGHT, GUESS_WEIGHT), HALF_LIFE)
        """The same of a lone session, beside an idle drafter."""
        self._besides = Line((GUESSED_SHARE, GUESSED_SHARE), (GUESS_WEIGHT, GUESS_WEIGHT), HALF_LIFE)
        """Both in forwards of one row: what a forward takes for its rows and sessions; a round for itself and its γ."""
        self._num_verdicts = 0
        self._present: dict[int, _Seen] = {}
        """By session, the one that was seen longest ago first."""

    @property
    def sessions(self) -> int:
        """How many share the verifier: this gateway's, or more where a forward was shared with others'."""
        return max(1, len(self._present), *(round(one.batch) for one in self._present.values()))

    def observe(self, session: int, record: RoundRecord) -> None:
        """Take in a verdict of a session. One that holds more than a round tells who is there, and nothing of costs."""
        verdict, timing = record.verdict, record.timing
        self._see(session, verdict.batch_sessions)
        sessions = self.sessions
        if record.finished:
            self.leave(session)
        if not (timing.typical and verdict.forward_us and verdict.batch_rows):
            return
        self._target = self._target or (ForwardCost(verdict.batch_rows, verdict.forward_us),)
        self._update()
        # Of many sessions there are as many times the verdicts in the same time.
        batch, weight = max(verdict.batch_sessions, 1), 1 / sessions
        # A lone session waits for nobody: all that its verdict took is the target's.
        us = max(verdict.verify_us, verdict.forward_us) if sessions == 1 else verdict.forward_us
        width = forward_us(self._target, verdict.batch_rows) / self._unit_us
        is_quiet = record.undrafted and not record.plan.tells_drafter and sessions == 1
        (self._alone if is_quiet else self._forward).add((width, batch - 1), us / self._unit_us, weight)
        if gamma := len(record.proposal):
            # While its reader is busy a round stands still, and a solo run goes on: that is a round's, too.
            us = max(timing.round_us + timing.read_us - verdict.verify_us, 0)
            self._besides.add((1, gamma), us / self._unit_us, weight)

    def leave(self, session: int) -> None:
        """Count a session no more."""
        self._present.pop(session, None)

    def now(self) -> Prices | None:
        """Return the prices of this moment; None: nothing was told, and no verdict was seen."""
        self._update()
        if not self._target:
            return None
        (pace, session), (overhead, token), unit_us = self._forward.solve(), self._besides.solve(), self._unit_us
        rounds_us = session * unit_us, overhead * unit_us, token * unit_us
        return Prices(self._target, pace, *rounds_us, self._alone.solve()[0] * unit_us, self.sessions)

    def _update(self) -> None:
        measured = self._ask_measured()
        self._target = measured.target or self._target
        if not self._target or measured == self._measured:
            return
        self._measured = measured
        if measured.draft:
            token = forward_us(measured.draft, 1) / self._unit_us
            self._besides.draw_to((GUESSED_SHARE, token), (GUESS_WEIGHT, MEASURED_WEIGHT))

    def draft_prompt_us(self, num_tokens: int) -> float:
        """Return what the drafter takes to read so many tokens; 0 where it did not tell."""
        return forward_us(self._measured.draft, num_tokens) if self._measured.draft else 0.0

    @property
    def _unit_us(self) -> float:
        return forward_us(self._target, 1)

    def _see(self, session: int, batch: int) -> None:
        self._num_verdicts += 1
        mean = self._present.pop(session, _Seen(0, batch)).batch
        self._present[session] = _Seen(self._num_verdicts, mean + BATCH_SHARE * (batch - mean))
        limit = self._num_verdicts - max(NUM_RECENT, 4 * len(self._present))
        while self._present[first := next(iter(self._present))].at <= limit:
            del self._present[first]
