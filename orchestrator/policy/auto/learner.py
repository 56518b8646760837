"""What one gateway has learned of all its sessions, and the policies of those whose gate is ``auto``. No threads."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count

from orchestrator.policy.auto.choice import Found, search
from orchestrator.policy.auto.costs import Costs, MeasuredCosts, Prices
from orchestrator.policy.auto.history import History
from orchestrator.policy.auto.policy import Auto
from orchestrator.policy.gates import Asked, DrafterState, Gate
from specgate.types import RoundRecord, Verification

MAX_CHOICE = 16
"""Draft tokens that are ever chosen, whatever a request allows: a search through more takes longer than it brings."""
VERDICTS_A_SEARCH, FIRST_VERDICTS = 16, 4
"""Of each session, between two searches, which take some milliseconds each; sooner while little is known."""
EXPLORED = 0.01
"""Of the time: what may be lost by drafting where it does not seem to pay."""
LEAST_LOSS = 0.02
"""Of a forward, by a probe: that nothing seems to be lost is no reason to probe always."""

Pace = Callable[[Iterator[None]], None]
"""Takes all steps of some work, sooner or later."""


def at_once(steps: Iterator[None]) -> None:
    """Take all steps now."""
    for _ in steps:
        pass


def mode_of(request: Asked) -> tuple[Verification, int]:
    """Return what requests have in common whose drafts survive alike: verification, and temperature in quarters."""
    if request.sampling.greedy:
        return Verification.SHARED_NOISE, 0
    return request.verification, min(max(round(request.sampling.temperature * 4), 1), 8)


class Learner:
    """Learns from the rounds of all sessions. What they cost depends on the two models, how drafts survive on the mode.

    Args:
        measured: returns what the services told of their costs by now.
        pace: of the searches.
    """

    def __init__(self, measured: Callable[[], MeasuredCosts] = MeasuredCosts, pace: Pace = at_once) -> None:
        self.costs = Costs(measured)
        self._pace = pace
        self._modes: dict[tuple[Verification, int], ModeLearner] = {}
        self._sessions = count()

    def policy(self, request: Asked, drafter: DrafterState) -> Auto:
        """Return the policy of one session, which asks this drafter."""
        return Auto(self._mode(request), drafter, min(request.max_gamma, MAX_CHOICE))

    def observer(self, request: Asked) -> "Observer | None":
        """Return whom to tell of a session's verdicts; None where they would teach nothing.

        ``draft_confidence`` ends a draft where it is unsure: the tokens that are left survive better than others.
        """
        return None if request.gate is Gate.DRAFT_CONFIDENCE else Observer(self._mode(request), next(self._sessions))

    def _mode(self, request: Asked) -> "ModeLearner":
        return self._modes.setdefault(mode_of(request), ModeLearner(self.costs, self._pace))


class ModeLearner:
    """Of the requests of one mode. See ``policy.Choices``."""

    def __init__(self, costs: Costs, pace: Pace) -> None:
        self.costs = costs
        self._pace = pace
        self._history = History()
        self._found: dict[int, Found] = {}
        """In use, by the most draft tokens that a request allows."""
        self._searched_at: dict[int, int] = {}
        self._num_verdicts = 0
        self._credit_us = 0.0

    def observe(self, session: int, record: RoundRecord) -> None:
        """Learn from one verdict; an empty one says nothing."""
        if record.num_tokens:
            self._num_verdicts += 1
            self._credit_us += EXPLORED * (record.timing.round_us or record.verdict.verify_us)
            self._history.add(record)
            self.costs.observe(session, record)

    def found(self, max_gamma: int, *, renew: bool = True) -> Found | None:
        """See ``policy.Choices``."""
        last = self._found.get(max_gamma)
        num_new = self._num_verdicts - self._searched_at.get(max_gamma, 0)
        enough = VERDICTS_A_SEARCH if self._num_verdicts > VERDICTS_A_SEARCH else FIRST_VERDICTS
        is_due = last is None or (renew and num_new >= enough * self.costs.sessions)
        if is_due and (prices := self.costs.now()) is not None:
            self._searched_at[max_gamma] = self._num_verdicts
            # The first one is waited for: there is nothing to go on with meanwhile.
            (self._pace if last else at_once)(self._search(prices, max_gamma, last))
        return self._found.get(max_gamma)

    def book_probe(self, max_gamma: int, loss_us: float, num_unread: int) -> bool:
        """See ``policy.Choices``."""
        prices = self.costs.now()
        if prices is None or not prices.can_pay(max_gamma):
            return False
        price_us = max(loss_us, LEAST_LOSS * prices.forward_us(1)) + self.costs.draft_prompt_us(num_unread)
        is_due = self._credit_us >= price_us
        # What was saved up is gone, so that a long time without a probe does not end in a row of them.
        self._credit_us = 0.0 if is_due else self._credit_us
        return is_due

    def _search(self, prices: Prices, max_gamma: int, last: Found | None) -> Generator[None]:
        choice = last.choice if last else None
        self._found[max_gamma] = yield from search(self._history.tokens(), prices, max_gamma, choice)


@dataclass(frozen=True, slots=True)
class Observer:
    """Tells of one session's records, until it leaves. That is safe to call twice."""

    mode: ModeLearner
    session: int

    def __call__(self, record: RoundRecord, /) -> None:
        self.mode.observe(self.session, record)

    def leave(self) -> None:
        self.mode.costs.leave(self.session)
