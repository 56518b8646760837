"""What one gateway has learned of all its sessions, and the choices that follow. One event loop, no threads."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from orchestrator.auto.ahead import Readiness
from orchestrator.auto.choice import MAX_SOLO_TOKENS, Chooser, Table
from orchestrator.auto.costs import Costs, Prices
from orchestrator.auto.history import History
from orchestrator.auto.observation import Mode, Observation, Observer
from orchestrator.auto.options import Choice
from orchestrator.auto.pace import Pace, at_once
from orchestrator.auto.policy import Auto
from orchestrator.auto.promises import Promises, Tally
from orchestrator.request import Gate, GenerationRequest

PROBE_BUDGET, FIRST_PROBE_BUDGET, FIRST_VERDICTS = 0.01, 0.02, 512
"""Of the time: what may be lost by drafting where it does not seem to pay; more for the first verdicts of a mode."""
MIN_VERDICTS_CLOSED = 24
"""Of a mode, before anything is left to the target alone: of few rounds many are odd ones."""
MAX_CHOICE = 16
"""Draft tokens that are ever chosen, whatever a request allows: a search through more takes longer than it brings."""
PROBE_HORIZON = 3.0
"""Probes that may be saved up, so that a long time without one does not end in a row of them."""
FIRST_VERDICTS_A_TABLE, VERDICTS_A_TABLE, MOST_VERDICTS_A_TABLE = 8, 32, 128
"""Of a mode, between two searches for a table: at first, later on where it has changed, and where it has not: a search
takes some milliseconds."""
MOST_SESSIONS = 8
"""Many sessions have so many verdicts in the time of one: up to so many times as many are waited for."""
VERDICTS_A_MOVE, MAX_MOVES = 48, 8
"""A search may lead one move farther for so many verdicts of the mode that were seen."""
NEW_SHARE = 4
"""One verdict in so many of those that were seen is new when a search is worth its time."""
VERDICTS_SKIPPED, VERDICTS_SKIPPED_BEHIND_ALONE = 3, 16
"""Of each other session, which are held against no promise when the table changes. A solo run goes on for longer."""
ALIKE = 1.5
"""So many times as many sessions are another load."""
TRIAL_AFTER, TRIAL_LONGER, TRIALS_APART = 64, 4, 2048
"""Verdicts of each session before the target alone is tried in a crowd, so many times as many before each next trial,
and the most between two of them."""
TRIAL_VERDICTS, TRIAL_TOKENS = 24, 16
"""Of each session: how long a trial is, and its solo runs, so that it ends soon."""
TRIAL_REACH = 1.75
"""A trial is worth it if so many times what the target alone promises were better than what is in use."""
MIN_SOLO_TOKENS = 16
VERDICTS_A_TOKEN = 8
"""A solo run may be one token longer for so many verdicts that were seen."""
ROUND_TRIP_SHARE, FIRST_ROUND_TRIP_SHARE = 0.01, 0.02
"""Of a solo run's time, what coming back to ask may cost; the latter while little is known, which may be wrong."""


@dataclass(slots=True)
class InUse:
    """A table, what happened since it is in use, and at which verdict of its mode it is searched for again.

    Before the verdict ``counts_from`` other sessions are still about what the table before had planned. ``tally`` is of
    times when so many ``sessions`` were there. ``resume`` is what is searched from behind a trial.
    """

    table: Table
    due_at: int
    counts_from: int
    sessions: int
    tally: Tally = field(default_factory=Tally)
    resume: Choice | None = None

    @property
    def skipped(self) -> int:
        """Verdicts of each other session that still do this when the table changes."""
        return VERDICTS_SKIPPED if self.table.choice.drafts or self.resume else VERDICTS_SKIPPED_BEHIND_ALONE

    def settle(self, promises: Promises, rate: float, sessions: int) -> None:
        """Hold what the table came to against the ``rate`` that it promises now, with so many sessions."""
        if not 1 / ALIKE <= sessions / self.sessions <= ALIKE:
            self.tally, self.sessions = Tally(), sessions
        elif self.tally.is_enough(min(sessions, MOST_SESSIONS)):
            promises.settle(self.table.choice, rate, self.tally)
            self.tally = Tally()


@dataclass(slots=True)
class ModeKnowledge:
    """What is particular to requests of one mode."""

    history: History = field(default_factory=History)
    readiness: Readiness = field(default_factory=Readiness)
    promises: Promises = field(default_factory=Promises)
    tables: dict[int, InUse] = field(default_factory=dict)
    """By the most draft tokens that a request allows."""
    searched: set[int] = field(default_factory=set)
    """For which of these a search goes on."""
    num_tables: int = 0
    num_verdicts: int = 0
    num_rounds: int = 0
    trial_at: int = 0
    credit_us: float = 0.0

    def is_trial_due(self, sessions: int) -> bool:
        """Say whether the target alone is to be tried now, and if so when the next time is.

        What a forward of all sessions together takes is only guessed while drafts keep them apart.
        """
        if self.num_verdicts < max(self.trial_at, TRIAL_AFTER * sessions):
            return False
        self.put_off_trial(sessions)
        return True

    def put_off_trial(self, sessions: int) -> None:
        """Let the next trial be later, since the target alone has just been in use."""
        self.trial_at = self.num_verdicts + min((TRIAL_LONGER - 1) * self.num_verdicts, TRIALS_APART * sessions)


class Learner:
    """Learns from the rounds of all sessions; plans for those whose gate is ``auto``.

    How drafts survive is known per mode. What rounds cost depends on the two models, not on the mode.

    Args:
        pace: of the searches for tables.
    """

    def __init__(self, pace: Pace = at_once) -> None:
        self.costs = Costs()
        self._pace = pace
        self._modes: dict[Mode, ModeKnowledge] = {}
        self._prices: Prices | None = None
        self._sessions = count()

    def policy(self, request: GenerationRequest) -> Auto:
        """Return the policy of one session."""
        return Auto(self, _mode(request), min(request.max_gamma, MAX_CHOICE))

    def observer(self, request: GenerationRequest) -> Observer | None:
        """Return whom to tell of a session's verdicts; None where they would teach nothing.

        ``draft_confidence`` ends a draft where it is unsure: the tokens that are left survive better than others.
        """
        if request.gate is Gate.DRAFT_CONFIDENCE:
            return None
        gamma = min(request.max_gamma, MAX_CHOICE)
        return partial(self.observe, _mode(request), next(self._sessions), max_gamma=gamma)

    def observe(self, mode: Mode, session: int, seen: Observation, *, max_gamma: int = 0) -> None:
        """Learn from one verdict, of a request that allows ``max_gamma``."""
        known = self.knowledge(mode)
        known.num_verdicts += 1
        self.costs.observe(seen, session, announced=mode.is_announced)
        known.history.add(session, seen)
        if seen.behind is not None and seen.proposed:
            known.readiness.observe(seen.behind, is_there=seen.prepared > 0)
        session_us = seen.verify_us if seen.streamed else seen.round_us
        budget = FIRST_PROBE_BUDGET if known.num_verdicts < FIRST_VERDICTS else PROBE_BUDGET
        known.credit_us += budget * session_us
        # A prompt that ran along is in no promise.
        is_measure = seen.settled and (seen.batch_rows or not seen.forward_us)
        in_use = known.tables.get(max_gamma)
        if in_use is None or known.num_verdicts < in_use.counts_from:
            return
        if is_measure and seen.chosen == in_use.table.number:
            in_use.tally.add(seen.accepted + 1, session_us + seen.read_us)

    def knowledge(self, mode: Mode) -> ModeKnowledge:
        """Return what is known of a mode."""
        if mode not in self._modes:
            self._modes[mode] = ModeKnowledge()
        return self._modes[mode]

    def table(self, mode: Mode, max_gamma: int) -> Table | None:
        """Return the choices of this moment; None while no cost is known."""
        known = self.knowledge(mode)
        in_use = known.tables.get(max_gamma)
        is_due = in_use is None or known.num_verdicts >= in_use.due_at
        if is_due and max_gamma not in known.searched and (prices := self.costs.now(announced=mode.is_announced)):
            self._prices = prices
            steps = _search(known, max_gamma, prices)
            next(steps)
            self._pace(steps)
            in_use = known.tables.get(max_gamma)
        return in_use.table if in_use else None

    def next_round(self, mode: Mode) -> int:
        """Return the number of a mode's round that is planned now, over all its sessions."""
        known = self.knowledge(mode)
        known.num_rounds += 1
        return known.num_rounds

    def solo_run(self) -> int:
        """Return how many tokens a solo run may have: few, so that it ends soon, and enough to be worth the asking."""
        if self._prices is None:
            return MIN_SOLO_TOKENS
        prices = self._prices
        trip = prices.rest_us / (prices.forward(1) + prices.solo_us) + prices.wait
        least = max(round(trip / FIRST_ROUND_TRIP_SHARE), MIN_SOLO_TOKENS)
        num_verdicts = sum(known.num_verdicts for known in self._modes.values())
        most = min(max(num_verdicts // VERDICTS_A_TOKEN, least), MAX_SOLO_TOKENS)
        return min(max(round(trip / ROUND_TRIP_SHARE), least), most)

    def may_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool:
        """Say whether a probe that loses ``loss_us`` is within the budget, and if so book it.

        ``floor_us`` is the least that a probe is booked with: an estimate of no loss is no reason to probe always.
        """
        known, price_us = self.knowledge(mode), max(loss_us, floor_us)
        known.credit_us = min(known.credit_us, PROBE_HORIZON * price_us)
        if known.credit_us < price_us:
            return False
        known.credit_us -= price_us
        return True


def _search(known: ModeKnowledge, max_gamma: int, prices: Prices) -> Iterator[None]:
    """Put a table into ``known``, with pauses; the first one is at the beginning."""
    known.searched.add(max_gamma)
    try:
        yield
        known.tables[max_gamma] = yield from _found(known, known.tables.get(max_gamma), max_gamma, prices)
    finally:
        known.searched.discard(max_gamma)


def _found(known: ModeKnowledge, last: InUse | None, max_gamma: int, prices: Prices) -> Generator[None, None, InUse]:
    """Return the table that comes after ``last``, and when the next one is due."""
    text = known.history.text()
    yield
    ahead = known.readiness.ahead(max_gamma, text.agreement)
    may_close = known.num_verdicts >= MIN_VERDICTS_CLOSED
    chooser = Chooser(text, prices, max_gamma, ahead, known.promises, may_close=may_close)
    if last is not None:
        last.settle(known.promises, chooser.load(last.table.choice).rate, prices.sessions)
    yield
    max_moves = min(max(known.num_verdicts // VERDICTS_A_MOVE, 1), MAX_MOVES)
    table = yield from chooser.search((last.resume or last.table.choice) if last is not None else None, max_moves)
    return _next(known, last, table, prices.sessions, chooser)


def _next(known: ModeKnowledge, last: InUse | None, table: Table, num_sessions: int, chooser: Chooser) -> InUse:
    """Put ``table`` into use, or go on with the last one if it does the same, or try the target alone first."""
    sessions = min(num_sessions, MOST_SESSIONS)
    stays = last is not None and table.choice.acts_as(last.table.choice)
    most = (MOST_VERDICTS_A_TABLE if stays else VERDICTS_A_TABLE) * sessions
    due_at = known.num_verdicts + min(max(known.num_verdicts // NEW_SHARE, FIRST_VERDICTS_A_TABLE), most)
    resume = None
    if not table.choice.drafts:
        known.put_off_trial(sessions)
    elif sessions > 1 and (trial := chooser.trial(table.choice, TRIAL_REACH)) and known.is_trial_due(sessions):
        table, resume, stays = trial._replace(most_solo=TRIAL_TOKENS), table.choice, False
        due_at = known.num_verdicts + TRIAL_VERDICTS * sessions
    if last is not None and stays:
        return replace(last, table=table._replace(number=last.table.number), due_at=due_at, resume=None)
    known.num_tables += 1
    skipped = VERDICTS_SKIPPED if last is None else last.skipped
    counts_from = known.num_verdicts + skipped * (sessions - 1)
    return InUse(table._replace(number=known.num_tables), due_at, counts_from, num_sessions, resume=resume)


def _mode(request: GenerationRequest) -> Mode:
    return Mode.of(request.verification, request.sampling)
