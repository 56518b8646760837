"""What one gateway learns about one mode of requests: the current choice, and when to probe."""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator

from orchestrator.policy.auto.choice import RatedChoice, rate, search
from orchestrator.policy.auto.costs import LEAST_RUN, Costs, Prices
from orchestrator.policy.auto.history import History, TokenHistory
from specgate.types import RoundRecord

FIRST_VERDICTS, MOST_VERDICTS = 4, 128
"""Verdicts before the second search, which takes some 7 ms; then they double, up to so many of each session."""
EXPLORED = 0.01
"""Share of the time that probes may lose."""
LEAST_LOSS = 0.02
"""Least loss that a probe is charged, as a share of a forward; it limits probes that seem free."""
RUNNING_SHARE, FORGOTTEN_SHARE = 0.5, 0.1
"""Weight of what a running draft brought since the last search; and what is forgotten of it at one without."""
_Case = tuple[int, int]
"""A limit of draft tokens, and the ``Costs.load``."""
Pace = Callable[[Iterator[None]], None]
"""Runs all steps of some work, now or later."""


def at_once(steps: Iterator[None]) -> None:
    """Run all steps now."""
    for _ in steps:
        pass


class ModeLearner:
    """Learns from the requests of one mode and makes its choices.

    Args:
        copies: the drafter copies from the text and nobody waits for it. Then tokens without a draft teach nothing
            about acceptance, and a round costs one forward.
        rejects: drafts are sampled, and verified by rejection.
    """

    def __init__(self, costs: Costs, pace: Pace, *, copies: bool = False, rejects: bool = False) -> None:
        self.costs = costs
        self._rejects = rejects
        self._copies = copies
        self._pace = pace
        self._history = History()
        self._found: dict[_Case, RatedChoice] = {}
        """The current choices."""
        self._searched_at: dict[_Case, int] = {}
        self._num_verdicts = Counter[int]()
        self._credit_us = 0.0
        self._running = defaultdict[int, RunningPace](RunningPace)
        """These and the numbers of verdicts are by load."""

    def observe(self, session: int, record: RoundRecord) -> None:
        """Learn from one verdict; an empty one is ignored."""
        if record.num_tokens:
            self._credit_us += EXPLORED * (record.timing.round_us or record.verdict.verify_us)
            if not (self._copies and record.undrafted):
                self._history.add(record)
            self.costs.observe(session, record)
            self._num_verdicts[self.costs.load] += 1
            self._running[self.costs.load].observe(record)

    def choice(self, max_gamma: int) -> RatedChoice | None:
        """Return the current choice, after a first search if there was none; None if no cost is known.

        Until that of so many sessions is found, that of the next fewer or more will do.
        """
        case = self._case(max_gamma)
        if case not in self._searched_at:
            self._begin_search(case)
        like = [one for one in self._found if one[0] == max_gamma]
        return self._found[min(like, key=lambda one: abs(one[1] - case[1]))] if like else None

    def search(self, max_gamma: int) -> RatedChoice | None:
        """Return the current choice, and search for a better one when due; None if no cost is known."""
        case = self._case(max_gamma)
        last = self._searched_at.get(case, 0)
        enough = min(max(last, FIRST_VERDICTS), MOST_VERDICTS * self.costs.sessions)
        if case in self._found and self._num_verdicts[case[1]] - last >= enough:
            self._begin_search(case)
        return self.choice(max_gamma)

    def _case(self, max_gamma: int) -> _Case:
        return max_gamma, self.costs.load

    def _begin_search(self, case: _Case) -> None:
        if (prices := self.prices()) is not None:
            self._searched_at[case] = self._num_verdicts[case[1]]
            # The first search runs at once: there is no choice to use meanwhile.
            is_first = all(max_gamma != case[0] for max_gamma, _ in self._found)
            (at_once if is_first else self._pace)(self._search(prices, case))

    def book_probe(self, max_gamma: int, loss_us: float, num_unread: int) -> bool:
        """Return whether a probe can lead to anything and is within the budget, and if so book it.

        Args:
            loss_us: of its rounds.
            num_unread: tokens that the drafter has to read first.
        """
        prices = self.prices()
        if prices is None or not prices.can_pay(max_gamma):
            return False
        price_us = max(loss_us, LEAST_LOSS * prices.forward_us(1)) + self.costs.draft_prompt_us(num_unread)
        is_due = self._credit_us >= price_us
        # What was saved up is gone, so that a long time without a probe does not end in a row of them.
        self._credit_us = 0.0 if is_due else self._credit_us
        return is_due

    def text(self) -> TokenHistory:
        """Return what is remembered of the draft."""
        return self._history.tokens()

    def prices(self) -> Prices | None:
        """Return the current costs; None before the first measurement."""
        prices = self.costs.now()
        if prices is None or not (self._copies or self._rejects):
            return prices
        if self._rejects and not self._copies:
            # A draft that was sampled holds for one round.
            return prices._replace(round_trip_us=0.0)
        alone_us = prices.forward_us(prices.sessions, prices.sessions)
        return prices._replace(overhead_us=0.0, token_us=0.0, alone_us=alone_us, round_trip_us=0.0)

    def _search(self, prices: Prices, case: _Case) -> Generator[None]:
        last, running = self._found.get(case), self._running[case[1]]
        text, choice = self.text(), last.choice if last else None
        if choice is not None and choice.running and choice.drafts:
            running.learn(1 / rate(text, choice, prices._replace(running_pace=1.0)))
        else:
            running.forget()
        prices = prices._replace(running_pace=running.pace)
        self._found[case] = yield from search(text, prices, case[0], choice)


class RunningPace:
    """How much longer texts with a running draft take than is expected of them."""

    def __init__(self) -> None:
        self.pace = 1.0
        self._verify_us = self._waited_us = self._tokens = 0

    def observe(self, record: RoundRecord) -> None:
        """Learn from a verdict."""
        if record.plan.running_gamma and record.timing.typical:
            self._verify_us += record.verdict.verify_us
            self._waited_us += record.verdict.waited_us
            self._tokens += record.num_tokens

    def learn(self, token_us: float) -> None:
        """Take what was seen since the last time into account; a token was expected to take ``token_us``."""
        if self._tokens >= LEAST_RUN:
            # Verdicts come in bursts: one is waited for, and the next one is there.
            seen = max(self._verify_us, self._waited_us) / (self._tokens * token_us)
            self.pace += RUNNING_SHARE * (min(max(seen, 0.5), 4.0) - self.pace)
            self._start()

    def forget(self) -> None:
        """Nothing runs: what kept it from paying may have changed meanwhile."""
        self.pace += FORGOTTEN_SHARE * (1.0 - self.pace)
        self._start()

    def _start(self) -> None:
        self._verify_us = self._waited_us = self._tokens = 0
