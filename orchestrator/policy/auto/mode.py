"""What one gateway has learned of one mode of requests, in its rounds: what to choose, and whether to try more."""

from collections.abc import Callable, Generator, Iterator

from orchestrator.policy.auto.choice import Found, search
from orchestrator.policy.auto.costs import Costs, Prices
from orchestrator.policy.auto.history import History
from specgate.types import RoundRecord

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


class ModeLearner:
    """What was learned of the requests of one mode, and the choices that follow from it.

    Args:
        copies: drafts are had where there is evidence alone, and nobody waits for them. So what was decoded without one
            says nothing of them, and a round costs its forward.
    """

    def __init__(self, costs: Costs, pace: Pace, *, copies: bool = False) -> None:
        self.costs = costs
        self._copies = copies
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
            if not (self._copies and record.undrafted):
                self._history.add(record)
            self.costs.observe(session, record)

    def found(self, max_gamma: int, *, renew: bool = True) -> Found | None:
        """Return the choice of this moment, and search for a better one if it is time; None: no cost is known."""
        last = self._found.get(max_gamma)
        num_new = self._num_verdicts - self._searched_at.get(max_gamma, 0)
        enough = VERDICTS_A_SEARCH if self._num_verdicts > VERDICTS_A_SEARCH else FIRST_VERDICTS
        is_due = last is None or (renew and num_new >= enough * self.costs.sessions)
        if is_due and (prices := self._prices()) is not None:
            self._searched_at[max_gamma] = self._num_verdicts
            # The first one is waited for: there is nothing to go on with meanwhile.
            (self._pace if last else at_once)(self._search(prices, max_gamma, last))
        return self._found.get(max_gamma)

    def book_probe(self, max_gamma: int, loss_us: float, num_unread: int) -> bool:
        """Return whether a probe can lead to anything and is within the budget, and if so book it.

        Args:
            loss_us: of its rounds.
            num_unread: tokens that the drafter has to read first.
        """
        prices = self._prices()
        if prices is None or not prices.can_pay(max_gamma):
            return False
        price_us = max(loss_us, LEAST_LOSS * prices.forward_us(1)) + self.costs.draft_prompt_us(num_unread)
        is_due = self._credit_us >= price_us
        # What was saved up is gone, so that a long time without a probe does not end in a row of them.
        self._credit_us = 0.0 if is_due else self._credit_us
        return is_due

    def _prices(self) -> Prices | None:
        prices = self.costs.now()
        if prices is None or not self._copies:
            return prices
        return prices._replace(overhead_us=0.0, token_us=0.0, alone_us=prices.forward_us(1))

    def _search(self, prices: Prices, max_gamma: int, last: Found | None) -> Generator[None]:
        choice = last.choice if last else None
        self._found[max_gamma] = yield from search(self._history.tokens(), prices, max_gamma, choice)
