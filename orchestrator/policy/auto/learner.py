"""What one gateway has learned of all its sessions, and the choices that follow. One event loop, no threads."""

from dataclasses import dataclass
from itertools import count

from orchestrator.policy.auto.choice import MAX_SOLO_TOKENS, Table
from orchestrator.policy.auto.cooperative_steps import CooperativeSteps, at_once
from orchestrator.policy.auto.costs import Costs
from orchestrator.policy.auto.mode_state import ModeState
from orchestrator.policy.auto.observation import Mode, Observation
from orchestrator.policy.auto.plan_table import search
from orchestrator.policy.auto.policy import Auto
from orchestrator.policy.auto.prices import Prices
from orchestrator.policy.gates import Asked, Gate

PROBE_BUDGET, FIRST_PROBE_BUDGET, FIRST_VERDICTS = 0.01, 0.02, 512
"""Of the time: what may be lost by drafting where it does not seem to pay; more for the first verdicts of a mode."""
MAX_CHOICE = 16
"""Draft tokens that are ever chosen, whatever a request allows: a search through more takes longer than it brings."""
PROBE_HORIZON = 3.0
"""Probes that may be saved up, so that a long time without one does not end in a row of them."""
MIN_SOLO_TOKENS = 16
VERDICTS_A_TOKEN = 8
"""A solo run may be one token longer for so many verdicts that were seen."""
ROUND_TRIP_SHARE, FIRST_ROUND_TRIP_SHARE = 0.01, 0.02
"""Of a solo run's time, what coming back to ask may cost; the latter while little is known, which may be wrong."""


class Learner:
    """Learns from the rounds of all sessions; plans for those whose gate is ``auto``.

    How drafts survive is known per mode. What rounds cost depends on the two models, not on the mode.

    Args:
        pace: of the searches for tables.
    """

    def __init__(self, pace: CooperativeSteps = at_once) -> None:
        self.costs = Costs()
        self._pace = pace
        self._modes: dict[Mode, ModeState] = {}
        self._prices: Prices | None = None
        self._sessions = count()

    def policy(self, request: Asked) -> Auto:
        """Return the policy of one session."""
        return Auto(self, _mode(request), min(request.max_gamma, MAX_CHOICE))

    def observer(self, request: Asked) -> "SessionObserver | None":
        """Return whom to tell of a session's verdicts; None where they would teach nothing.

        ``draft_confidence`` ends a draft where it is unsure: the tokens that are left survive better than others.
        """
        if request.gate is Gate.DRAFT_CONFIDENCE:
            return None
        gamma = min(request.max_gamma, MAX_CHOICE)
        return SessionObserver(self, _mode(request), next(self._sessions), gamma)

    def observe(self, mode: Mode, session: int, seen: Observation, *, max_gamma: int = 0) -> None:
        """Learn from one verdict, of a request that allows ``max_gamma``."""
        known = self.knowledge(mode)
        known.num_verdicts += 1
        self.costs.observe(seen, session, announced=mode.is_announced)
        known.history.add(session, seen)
        if seen.previous_round is not None and seen.proposed:
            known.readiness.observe(seen.previous_round, is_there=seen.prepared > 0)
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

    def leave(self, mode: Mode, session: int) -> None:
        """Count a session no more; what its text taught stays."""
        self.costs.leave(session)
        self.knowledge(mode).history.leave(session)

    def knowledge(self, mode: Mode) -> ModeState:
        """Return what is known of a mode."""
        if mode not in self._modes:
            self._modes[mode] = ModeState()
        return self._modes[mode]

    def table(self, mode: Mode, max_gamma: int) -> Table | None:
        """Return the choices of this moment; None while no cost is known."""
        known = self.knowledge(mode)
        in_use = known.tables.get(max_gamma)
        is_due = in_use is None or in_use.is_due(known.num_verdicts)
        if is_due and max_gamma not in known.searched and (prices := self.costs.now(announced=mode.is_announced)):
            self._prices = prices
            steps = search(known, max_gamma, prices)
            next(steps)
            self._pace(steps)
            in_use = known.tables.get(max_gamma)
        if in_use is None:
            return None
        # A trial that is over goes on for as long as the search takes, no longer.
        is_over = in_use.resume is not None and in_use.is_due(known.num_verdicts)
        return in_use.table._replace(most_solo=1) if is_over else in_use.table

    def standing(self, mode: Mode, max_gamma: int) -> Table | None:
        """Return the choices in use, without asking whether there are better ones."""
        in_use = self.knowledge(mode).tables.get(max_gamma)
        return in_use.table if in_use is not None else None

    def coming_round(self, mode: Mode) -> int:
        """Return the number that ``next_round`` gives next."""
        return self.knowledge(mode).num_rounds + 1

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
        trip = prices.overhead_us / (prices.forward(1) + prices.solo_us) + prices.wait
        least = max(round(trip / FIRST_ROUND_TRIP_SHARE), MIN_SOLO_TOKENS)
        num_verdicts = sum(known.num_verdicts for known in self._modes.values())
        most = min(max(num_verdicts // VERDICTS_A_TOKEN, least), MAX_SOLO_TOKENS)
        return min(max(round(trip / ROUND_TRIP_SHARE), least), most)

    def book_probe(self, mode: Mode, loss_us: float, floor_us: float) -> bool:
        """Return whether a probe that loses ``loss_us`` is within the budget, and if so book it.

        ``floor_us`` is the least that a probe is booked with: an estimate of no loss is no reason to probe always.
        """
        known, price_us = self.knowledge(mode), max(loss_us, floor_us)
        known.credit_us = min(known.credit_us, PROBE_HORIZON * price_us)
        if known.credit_us < price_us:
            return False
        known.credit_us -= price_us
        return True


@dataclass(frozen=True, slots=True)
class SessionObserver:
    """Tells a learner of one session. See ``observation.Observer``."""

    learner: Learner
    mode: Mode
    session: int
    max_gamma: int

    def __call__(self, seen: Observation, /) -> None:
        self.learner.observe(self.mode, self.session, seen, max_gamma=self.max_gamma)

    def leave(self) -> None:
        self.learner.leave(self.mode, self.session)


def _mode(request: Asked) -> Mode:
    return Mode.of(request.verification, request.sampling)
