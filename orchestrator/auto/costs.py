"""What a round costs, in microseconds, from the rounds before it.

Learned are quantities that do not hang on how far anybody drafts now: what a forward takes for its rows, what a draft
takes for its tokens, what a round waits on top, and how many sessions are there. What a choice costs under load then
follows from them, also for choices that nobody makes at present.

A further session in a forward costs more than a further row of one that is in it: its keys and values are read, its
token is picked. So a forward's time is a function of both.
"""

from collections import deque
from typing import NamedTuple

from orchestrator.auto.fit import Line, Mean
from orchestrator.auto.observation import Observation

HALF_LIFE = 60
ROW_SHARE, SESSION_SHARE = 0.05, 0.1
"""What a further row, and a further session, costs, in forwards, until it is measured."""
MIN_ROUNDS = 8
"""Rounds before costs count as known."""
NARROW_ROWS = 2
"""A session's forward of so many rows is remembered apart from wider ones, which would push it out."""
MAX_WAIT = 0.4
"""Forwards that a round waits before its own one, at the most. Who comes at any moment waits for up to half a forward.
A lone probe among sessions in step waits for more, which says nothing of what would be if they all drafted."""
NUM_RECENT = 64
"""Verdicts in whose forwards sessions of other gateways are looked for."""
NUM_VERDICTS_ALIVE = 1024
"""Verdicts of others after which a silent session counts no more."""


class Prices(NamedTuple):
    """The costs of this moment, in microseconds; ``sessions`` is how many share the verifier.

    A forward takes ``forward_us`` for one row, ``session_us`` for each further session, which has a row, and ``row_us``
    for each further row of those that are in it; a solo token takes ``solo_us`` besides.
    A round waits ``wait`` forwards before its own one, and ``rest_us`` for the network and the loop, or ``there_us``
    where it need not ask the drafter for what it uses, or ``bare_us`` where it uses none; a draft takes ``draft_us``
    and ``token_us`` for each token that is not there yet.
    Sessions that are in a forward for a share x of their time meet each other there with probability ``meeting`` x: not
    by chance alone, since those who wait for a forward then run together.
    """

    forward_us: float
    session_us: float
    row_us: float
    solo_us: float
    wait: float
    rest_us: float
    draft_us: float
    token_us: float
    sessions: int
    meeting: float
    there_us: float = 0.0
    bare_us: float = 0.0

    def batch(self, forward_share: float) -> float:
        """Return how many sessions one that is in a forward finds there, itself among them."""
        return 1 + (self.sessions - 1) * min(self.meeting * forward_share, 1.0)

    def forward(self, rows: float, sessions: float = 1.0) -> float:
        """Return what a forward of ``rows``, those of all its sessions together, takes."""
        return max(self.forward_us + self.session_us * (sessions - 1) + self.row_us * (rows - sessions), 1.0)

    def asked(self, gamma: int) -> float:
        """Return what a round takes, besides its forward and the wait before it, if ``gamma`` tokens are asked for."""
        return self.draft_us + self.token_us * gamma + self.rest_us

    def ready(self, gamma: int, num_ready: int, told: float = 1.0) -> float:
        """Return the same where ``num_ready`` tokens are there: those that are missing are asked for.

        Args:
            told: how often nothing need be asked for if none is.
        """
        if not gamma:
            return self.bare_us
        if num_ready < gamma:
            return self.asked(gamma - num_ready)
        return told * self.there_us + (1 - told) * self.asked(0)


class Costs:
    """Learns prices from verdicts."""

    def __init__(self) -> None:
        # Guesses in forwards of one row, and drafts that take nothing but their tokens, until there is more.
        guesses = (((-SESSION_SHARE, 1, 0), 1.0), ((-ROW_SHARE, 0, 1), 1.0))
        self._forward = Line(3, guesses, HALF_LIFE, groups=2)
        self._draft = Line(2, (((1, 0), 0.2), ((0, 1), 0.01)), HALF_LIFE)
        self._rest_us, self._wait_us, self._solo_us = Mean(HALF_LIFE), Mean(HALF_LIFE), Mean(HALF_LIFE)
        # Apart: without a draft the drafter is told at the same time as the verifier is asked.
        self._there_us, self._bare_us = Mean(HALF_LIFE), Mean(HALF_LIFE)
        self._verify = Line(2, (((-ROW_SHARE, 1), 1.0),), HALF_LIFE)
        self._batch, self._cycle_us, self._forward_us = Mean(HALF_LIFE), Mean(HALF_LIFE), Mean(HALF_LIFE)
        self._batches: deque[int] = deque(maxlen=NUM_RECENT)
        self._last_verdict: dict[int, int] = {}
        self._num_verdicts = 0
        self._num_rounds = 0

    def observe(self, seen: Observation, session: int = 0) -> None:
        """Take a verdict of a session in. One that may have waited for a prefill tells nothing of costs."""
        self._count_session(session, seen)
        if not seen.settled or not seen.verify_us:
            return
        if seen.forward_us and not seen.batch_rows:
            # A prompt ran along: no measure of a round, and far enough off to bend the line.
            return
        batch = max(seen.batch_sessions, 1)
        # A verifier that tells nothing of its forwards is taken at the round's word.
        rows = seen.batch_rows or batch * (seen.proposed + 1)
        forward_us = seen.forward_us or seen.verify_us
        self._forward.add((1, batch - 1, rows - batch), forward_us, group=rows > NARROW_ROWS * batch)
        waited_us = max(seen.verify_us - forward_us, 0)
        if seen.streamed:
            self._solo_us.add(waited_us)
        else:
            self._wait_us.add(waited_us)
            self._verify.add((1, seen.proposed), seen.verify_us)
        self._num_rounds += seen.proposed > seen.ready
        # A reader takes his time with every round: fewer of them are less of it.
        rest_us = max(seen.round_us - seen.draft_us - seen.verify_us, 0) + seen.read_us
        if seen.proposed > seen.ready:
            self._rest_us.add(rest_us)
            self._draft.add((1, seen.proposed - seen.prepared), seen.draft_us)
        elif not seen.streamed:
            (self._there_us if seen.proposed else self._bare_us).add(rest_us)
        self._batch.add(batch)
        self._forward_us.add(forward_us)
        self._cycle_us.add(seen.verify_us if seen.streamed else seen.round_us)

    def now(self, *, looks: bool = False) -> Prices | None:
        """Return the prices of this moment, None before there were rounds enough.

        Args:
            looks: what is there need not be asked for.
        """
        if self._num_rounds < MIN_ROUNDS:
            return None
        base_us, session_us, row_us = self._forward.coefficients
        draft_us, token_us = self._draft.coefficients
        mean_us = max(self._forward_us.value, 1.0)
        asks = not (looks and self._there_us.known)
        there_us = self._rest_us.value + draft_us if asks else self._there_us.value
        return Prices(
            # From forwards of many sessions alone a line may begin near 0.
            forward_us=max(base_us, session_us),
            session_us=session_us,
            row_us=row_us,
            solo_us=self._solo_us.value,
            wait=min(self._wait_us.value / mean_us, MAX_WAIT),
            rest_us=self._rest_us.value,
            draft_us=draft_us,
            token_us=token_us,
            sessions=self._sessions,
            meeting=self._meeting(mean_us),
            there_us=there_us,
            bare_us=self._bare_us.value if self._bare_us.known else there_us,
        )

    def verify_us(self, gamma: int) -> float:
        """Return what the verifier takes for a round of ``gamma`` draft tokens; 0 before anything is known."""
        return self._verify.about((1, gamma))

    def _count_session(self, session: int, seen: Observation) -> None:
        self._num_verdicts += 1
        self._batches.append(seen.batch_sessions)
        # Taken out and put in again, so that the one that was silent for longest comes first.
        self._last_verdict.pop(session, None)
        self._last_verdict[session] = self._num_verdicts
        if seen.finished:
            del self._last_verdict[session]
        # One that broke off tells nobody.
        oldest = next(iter(self._last_verdict), session)
        if self._last_verdict.get(oldest, self._num_verdicts) < self._num_verdicts - NUM_VERDICTS_ALIVE:
            del self._last_verdict[oldest]

    @property
    def _sessions(self) -> int:
        """This gateway's; or more, where a forward was shared with other gateways' sessions."""
        return max(len(self._last_verdict), 1, *self._batches)

    def _meeting(self, forward_us: float) -> float:
        others = self._sessions - 1
        if not others:
            return 1.0
        return max(self._batch.value - 1, 0.0) / others * max(self._cycle_us.value / forward_us, 1.0)
