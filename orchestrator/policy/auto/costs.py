"""Costs of a round in microseconds: first those that the services measured at load, then those of verdicts."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from specgate.types import MAX_GAMMA, ForwardCost, RoundRecord

HALF_LIFE = 100
"""Half-life of a measurement, in verdicts of each session; the speed of a shared machine changes within minutes."""
MEASURED_WEIGHT, GUESS_WEIGHT = 8.0, 0.5
"""Weight of a service's own measurement and of a guess, in verdicts."""
GUESSED_SHARE = 0.1
"""Guess until measured, as a share of a one-row forward: one more row or session, a draft token, the overhead."""
SESSION_US = 500.0
"""The same of one more session where services tell their costs: the host's work for it, however large the model is."""
NUM_RECENT = 2 * HALF_LIFE
"""Sessions of the last so many verdicts (or four per session) count as present; a stalled reader is no load."""
BATCH_SHARE = 0.1
"""Weight of a new verdict in the running mean of a session's batch size."""
LEAST_RUN, RUN_SHARE = 64, 0.02
"""Tokens of a solo run: so many, and so many more that its round trip takes no larger share of its time."""
ANSWERS_US, NEAR_US = 2000, 3000
"""What the answers of two near services take, of which a round's messages take little; and at most, on a busy machine.
"""
MESSAGES_TELL = 1.05
"""So many times the verifier's own time says that messages take longer than forwards; less is chance."""
EXTRA_SHARE = 0.05
"""Weight of a new measurement in the mean extra time of a round behind a solo token, and of a verdict."""
RESUME_FORGOTTEN = 0.0005
"""Share of the former that is forgotten at each other verdict: a gate that has lost by it could not correct it."""
MOST_OFF = 4.0
"""A measurement counts as at most this many times its expectation; an outlier is no cost."""


class _Seen(NamedTuple):
    """Of a session: its last verdict's number, mean batch, length of text, whether the last round asked for a draft."""

    at: int
    batch: float = 0.0
    length: int = 0
    asked: bool | None = None


class MeasuredCosts(NamedTuple):
    """Forward times that the services measured at load, fewest rows first; () if unknown. ``round_trip_us``, in
    microseconds, is that to a verifier and to a drafter together; 0 if unknown, or if one has no running drafts.
    """

    target: Sequence[ForwardCost] = ()
    draft: Sequence[ForwardCost] = ()
    round_trip_us: float = 0.0


def forward_us(costs: Sequence[ForwardCost], rows: float) -> float:
    """Return the microseconds of a forward of ``rows``, by linear interpolation between the measured widths."""
    if len(costs) == 1:
        known_rows, known_us, _ = costs[0]
        return known_us * (1 + GUESSED_SHARE * (rows - 1)) / (1 + GUESSED_SHARE * (known_rows - 1))
    low, high = next(((a, b) for a, b in pairwise(costs) if rows <= b.rows), (costs[-2], costs[-1]))
    # Measurement noise must not make a larger forward faster.
    slope = max((high.forward_us - low.forward_us) / (high.rows - low.rows), 0.0)
    return max(low.forward_us + slope * (rows - low.rows), 1.0)


class Prices(NamedTuple):
    """The current cost estimates.

    A forward takes ``pace`` times its time at load, plus ``session_us`` for each session after the first. A round takes
    ``overhead_us`` plus ``token_us`` per draft token besides its forward, and ``resume_us`` more behind a token that
    the target decoded alone. ``sessions`` share the verifier. ``alone_us`` is a token of all of them without drafting;
    a working drafter slows the target on shared cores. A running draft brings a token every ``draft_us``, the first one
    ``round_trip_us`` after the verdict that it goes on from; a text with one takes ``running_pace`` times as long as
    that says. The verdicts of a run come ``message_us`` apart at the least. ``told_us`` are overhead and draft token as
    they were before the first round. ``drafter_price`` None: a session is to be fast; else tokens are to be cheap: a
    second of the drafter costs so much of one of the verifier.
    """

    target: Sequence[ForwardCost]
    pace: float
    session_us: float
    overhead_us: float
    token_us: float
    alone_us: float
    resume_us: float = 0.0
    sessions: int = 1
    draft_us: float = 0.0
    round_trip_us: float = 0.0
    running_pace: float = 1.0
    message_us: float = 0.0
    told_us: tuple[float, float] = (math.inf, math.inf)
    drafter_price: float | None = None

    def forward_us(self, rows: float, sessions: float = 1.0) -> float:
        """Return the microseconds of a forward of ``rows`` in all, shared by ``sessions``."""
        return max(self.pace * forward_us(self.target, rows) + self.session_us * (sessions - 1), 1.0)

    @property
    def runs(self) -> bool:
        """Whether there are running drafts. They take more forwards of the verifier than drafts that it waits for."""
        return self.round_trip_us > 0 and self.draft_us > 0 and self.drafter_price is None

    @property
    def far(self) -> bool:
        """Whether running drafts may pay: of many sessions near services prepare what they are asked for in time."""
        return self.runs and (self.sessions == 1 or self.round_trip_us > NEAR_US)

    @property
    def longest_run(self) -> int:
        """Tokens of one solo run. The policy cannot change within it, and a round trip comes after it."""
        return max(LEAST_RUN, int(self.round_trip_us / (RUN_SHARE * max(self.alone_us, 1.0))))

    def ahead(self, gamma: int) -> int:
        """Return how many tokens a running draft has to be ahead for ``gamma`` to be there at each verdict."""
        in_flight = int(self.round_trip_us / self.forward_us(1 + gamma)) * (1 + gamma)
        return min(2 * in_flight + 4 * gamma, MAX_GAMMA)


class Costs:
    """Learns costs from verdicts and counts the present sessions.

    Args:
        measured: returns the costs that the services have reported so far.
        drafter_price: see ``Prices``.
    """

    def __init__(self, measured: Callable[[], MeasuredCosts], drafter_price: float | None = None) -> None:
        self._ask_measured = measured
        self._drafter_price = drafter_price
        self._measured = MeasuredCosts()
        self._target: Sequence[ForwardCost] = ()
        """Without a text before the rows, as all that is learned: a longer one's times are held against its own."""
        self._forward = Line((1.0, GUESSED_SHARE), (MEASURED_WEIGHT, GUESS_WEIGHT))
        self._alone = Line((1.0, GUESSED_SHARE), (MEASURED_WEIGHT, GUESS_WEIGHT))
        """The same beside an idle drafter."""
        self._round_prior = (GUESSED_SHARE, GUESSED_SHARE), (GUESS_WEIGHT, GUESS_WEIGHT)
        self._besides = defaultdict[int, Line](lambda: Line(*self._round_prior))
        """All in units of a one-row forward: forwards by rows and sessions; overhead of a round by γ, for each
        ``load``, since many sessions wait for each other's drafts.
        """
        self._resume, self._verdict_extra = defaultdict[int, float](float), defaultdict[int, float](float)
        """By load: what a round takes more behind a solo token, in the same units; and what a verdict takes besides its
        forward, as a share of that, where all sessions share each.
        """
        self._messages = MessageTimes()
        self._num_verdicts = self._drafted_at = 0
        """Verdicts, and the number of the last one of a round that had work for a drafter."""
        self._present: dict[int, _Seen] = {}
        """By session; the least recently seen is first."""
        self._verifiers: dict[int, str] = {}
        """Endpoints by session, of those that have stopped reading, too."""
        self.sessions = 1
        """Sessions that share a verifier, those of other gateways included."""

    @property
    def load(self) -> int:
        """``sessions`` to a factor of two, as a number that is higher by 1 for twice as many."""
        return self.sessions.bit_length()

    def observe(self, session: int, record: RoundRecord) -> None:
        """Learn from one verdict. One of several rounds counts the sessions but teaches no cost."""
        verdict, timing = record.verdict, record.timing
        was_asked = self._see(session, record)
        sessions = self.sessions
        if record.finished:
            self.leave(session)
        if not record.undrafted or record.plan.sends_to_drafter:
            self._drafted_at = self._num_verdicts
        if not (timing.typical and verdict.forward_us and verdict.batch_rows):
            return
        self._target = self._target or (ForwardCost(verdict.batch_rows, verdict.forward_us),)
        self._update()
        target = [one.at(record.length) for one in self._target]
        # Many sessions give more verdicts in the same time, so each weighs less.
        batch, weight = max(verdict.batch_sessions, 1), 1 / sessions
        width = forward_us(target, verdict.batch_rows) / self._unit_us
        is_quiet = self._num_verdicts - self._drafted_at > 2 * (sessions - 1)
        whole_us = max(verdict.verify_us, verdict.forward_us)
        # One that is single, or shares each forward with all, waits for nobody: the whole verdict is the target's time.
        us = whole_us if sessions == 1 else verdict.forward_us
        if is_quiet and batch >= sessions > 1:
            extra = min(whole_us / verdict.forward_us, MOST_OFF) - 1
            self._verdict_extra[self.load] += EXTRA_SHARE * (extra - self._verdict_extra[self.load])
        (self._alone if is_quiet else self._forward).add((width, batch - 1), us / self._unit_us, weight)
        if verdict.solo and sessions == 1:
            self._messages.add(verdict.verify_us, verdict.waited_us)
        drafted = len(record.proposal) > 0 and not record.plan.running_gamma
        if not (drafted and was_asked is False):
            self._resume[self.load] *= 1 - RESUME_FORGOTTEN
        if drafted and was_asked is not None:
            self._learn_round(record, was_asked, weight)

    def _learn_round(self, record: RoundRecord, was_asked: bool, weight: float) -> None:
        """Learn what a drafted round takes besides its forward; where none was asked for before, what more than usual.

        A busy reader stalls rounds but no solo run, so its time counts as overhead of the round.
        """
        timing, usual = record.timing, self._besides[self.load]
        width = 1, len(record.proposal) * self._draft_factor(record.length)
        took = max(timing.round_us + timing.read_us - record.verdict.verify_us, 0) / self._unit_us
        if was_asked:
            usual.add(width, took, weight)
        else:
            more = usual.limited(width, took) - usual.at(width)
            self._resume[self.load] += EXTRA_SHARE * (more - self._resume[self.load])

    def enter(self, session: int) -> None:
        """Count a session from now on: many that begin at once share the verifier before any of them has a verdict."""
        self._present[session] = _Seen(self._num_verdicts)
        self._count()

    def attached(self, session: int, verifier: str) -> None:
        """From now on this endpoint serves a session."""
        self._verifiers[session] = verifier
        self._count()

    def leave(self, session: int) -> None:
        """Stop counting a session."""
        self._present.pop(session, None)
        self._verifiers.pop(session, None)
        self._count()

    def now(self) -> Prices | None:
        """Return the current estimates; None before the first measurement."""
        self._update()
        if not self._target:
            return None
        (pace, session), unit_us = self._forward.solve(), self._unit_us
        lengths = [one.length for one in self._present.values() if one.length]
        length = sum(lengths) / max(len(lengths), 1)
        target = tuple(one.at(length) for one in self._target)
        factor = self._draft_factor(length)
        round_us, told_us = (
            (overhead * unit_us, token * unit_us * factor)
            for overhead, token in (self._besides[self.load].solve(), self._round_prior[0])
        )
        draft_us = forward_us(draft, 1) * factor if (draft := self._measured.draft) else 0.0
        sessions, message_us, price = self.sessions, self._messages.us, self._drafter_price
        rounds_us, away_us = (session * unit_us, *round_us), (draft_us * sessions, self._measured.round_trip_us)
        resume_us = max(self._resume[self.load], 0.0) * unit_us
        prices = Prices(target, pace, *rounds_us, 0.0, resume_us, sessions, *away_us, 1.0, message_us, told_us, price)
        quiet_pace, quiet_session = self._alone.solve()
        quiet = prices._replace(pace=quiet_pace, session_us=quiet_session * unit_us)
        # No drafter at work makes a forward slower, whatever is guessed of many sessions that were never seen alone.
        alone_us = min(one.forward_us(sessions, sessions) for one in (quiet, prices))
        alone_us *= 1 + self._verdict_extra[self.load] * (sessions > 1)
        return prices._replace(alone_us=max(alone_us, message_us))

    def _update(self) -> None:
        measured = self._ask_measured()
        self._target = measured.target or self._target
        if not self._target or measured == self._measured:
            return
        self._measured = measured
        for line in (self._forward, self._alone):
            line.prior = 1.0, SESSION_US / self._unit_us
        if measured.draft:
            token = forward_us(measured.draft, 1) / self._unit_us
            # Where services are near, what they do for an answer is most of it; a round has its draft ready by then.
            way_us = measured.round_trip_us - ANSWERS_US
            overhead = max(GUESSED_SHARE, way_us / self._unit_us)
            self._round_prior = (overhead, token), (GUESS_WEIGHT, MEASURED_WEIGHT)
            for line in self._besides.values():
                line.prior, line.weights = self._round_prior

    def draft_prompt_us(self, num_tokens: int) -> float:
        """Return the microseconds in which the drafter reads ``num_tokens``; 0 if unknown."""
        return forward_us(self._measured.draft, num_tokens) if self._measured.draft else 0.0

    @property
    def _unit_us(self) -> float:
        return forward_us(self._target, 1)

    def _draft_factor(self, length: float) -> float:
        """Return how many times as long a draft token takes behind a text of this length."""
        draft = self._measured.draft
        return draft[0].at(length).forward_us / draft[0].forward_us if draft else 1.0

    def _see(self, session: int, record: RoundRecord) -> bool | None:
        """Count a session's verdict. Returns whether a draft was asked for in the round before; None if unknown."""
        self._num_verdicts += 1
        seen, batch = self._present.pop(session, _Seen(0)), record.verdict.batch_sessions
        mean = seen.batch or batch
        mean += BATCH_SHARE * (batch - mean)
        asked = record.plan.gamma > 0 and not record.verdict.solo
        self._present[session] = _Seen(self._num_verdicts, mean, record.length, asked)
        limit = self._num_verdicts - max(NUM_RECENT, 4 * len(self._present))
        while self._present[first := next(iter(self._present))].at <= limit:
            del self._present[first]
        self._count()
        return seen.asked

    def _count(self) -> None:
        present = self._present.values()
        # (One that has no verifier yet will get one of those.)
        num_verifiers = len(set(self._verifiers.values())) or 1
        self.sessions = max(1, round(len(present) / num_verifiers), *(round(one.batch) for one in present))


class MessageTimes:
    """Whether the verdicts of a run, a message each, come as fast as the verifier makes them."""

    def __init__(self) -> None:
        self._verify_us = self._waited_us = 0.0
        self._num = 0

    def add(self, verify_us: float, waited_us: float) -> None:
        """Learn from a verdict that was made in ``verify_us``, and waited for ``waited_us``."""
        self._num = min(self._num + 1, HALF_LIFE)
        self._verify_us += (min(verify_us, MOST_OFF * (self._verify_us or verify_us)) - self._verify_us) / self._num
        self._waited_us += (min(waited_us, MOST_OFF * (self._waited_us or waited_us)) - self._waited_us) / self._num

    @property
    def us(self) -> float:
        """The microseconds of a message; 0 where the forward takes longer."""
        return self._waited_us if self._waited_us > MESSAGES_TELL * self._verify_us else 0.0


class Line:
    """Ridge regression of y = c₁ x₁ + c₂ x₂ with a prior: the coefficients before the first measurement, which count as
    ``weights`` measurements with x = 1. Older measurements weigh less; no coefficient is negative.
    """

    def __init__(self, prior: tuple[float, float], weights: tuple[float, float]) -> None:
        self.prior, self.weights = prior, weights
        self._sums = [0.0] * 5
        """Of x₁², x₁x₂, x₂², x₁y and x₂y."""

    def at(self, x: tuple[float, float]) -> float:
        """Return what is expected of a measurement."""
        return sum(one * known for one, known in zip(x, self.solve(), strict=True))

    def limited(self, x: tuple[float, float], y: float) -> float:
        """Return a measurement, or ``MOST_OFF`` times what is expected of it if that is less."""
        return min(y, MOST_OFF * max(self.at(x), x[0]))

    def add(self, x: tuple[float, float], y: float, weight: float) -> None:
        """Add one measurement, ``limited``."""
        y = self.limited(x, y)
        keep = 0.5 ** (weight / HALF_LIFE)
        products = (x[0] * x[0], x[0] * x[1], x[1] * x[1], x[0] * y, x[1] * y)
        self._sums = [old * keep + weight * new for old, new in zip(self._sums, products, strict=True)]

    def solve(self) -> tuple[float, float]:
        """Return the current coefficients."""
        xx11, xx12, xx22, xy1, xy2 = self._sums
        xx11, xy1 = xx11 + self.weights[0], xy1 + self.weights[0] * self.prior[0]
        xx22, xy2 = xx22 + self.weights[1], xy2 + self.weights[1] * self.prior[1]
        determinant = xx11 * xx22 - xx12 * xx12
        first, second = (xy1 * xx22 - xy2 * xx12) / determinant, (xy2 * xx11 - xy1 * xx12) / determinant
        if first < 0:
            return 0.0, max(xy2 / xx22, 0.0)
        if second < 0:
            return max(xy1 / xx11, 0.0), 0.0
        return first, second
