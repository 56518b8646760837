"""What one gateway learns about one mode of requests: the current choice, and when to probe."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator

from orchestrator.policy.auto.choice import RatedChoice, rate, search
from orchestrator.policy.auto.costs import LEAST_RUN, Costs, Prices
from orchestrator.policy.auto.history import History, TokenHistory
from specgate.types import RoundRecord

FIRST_VERDICTS, MOST_VERDICTS = 4, 128
"""Verdicts from one search to the next: at first, and after drafting was begun or ended, which a few lucky probes may
have done; then they double, up to so many of each session, or more where forwards are short.
"""
SEARCH_US = 5000.0
"""Of a search, about. It runs beside the requests, and takes cores from them."""
EXPLORED = 0.01
"""Share of the time that probes may lose; and that searches may take in the long run."""
COPIED_SHARE = 0.02
"""Weight of a new verdict in how often there is a copy to judge."""
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
        self._due_at, self._turned_at = defaultdict[_Case, float](float), Counter[_Case]()
        """Number of verdicts at the next search, inf while one goes on; and when drafting was last begun or ended."""
        self._num_verdicts = Counter[int]()
        self._credit_us = 0.0
        self.copied = 1.0
        """The share of verdicts that had a copy to judge, of those that could."""
        self._running = defaultdict[int, RunningPace](RunningPace)
        """These and the numbers of verdicts are by load."""

    def observe(self, session: int, record: RoundRecord) -> None:
        """Learn from one verdict; an empty one is ignored."""
        if record.num_tokens:
            self._credit_us += EXPLORED * (record.timing.round_us or record.verdict.verify_us)
            if record.plan.running_gamma:
                self.copied += COPIED_SHARE * ((not record.undrafted) - self.copied)
            if not (self._copies and record.undrafted):
                self._history.add(record)
            self.costs.observe(session, record)
            self._num_verdicts[self.costs.load] += 1
            self._running[self.costs.load].observe(record)

    def choice(self, max_gamma: int) -> RatedChoice | None:
        """Return the current choice, and search for a better one when due; None if no cost is known.

        Until that of so many sessions is found, that of the next fewer or more will do.
        """
        case = max_gamma, self.costs.load
        now = self._num_verdicts[case[1]]
        if now >= self._due_at[case] and (prices := self.prices()) is not None:
            self._due_at[case] = math.inf
            # The first search runs at once: there is no choice to use meanwhile.
            is_first = all(one[0] != max_gamma for one in self._found)
            (at_once if is_first else self._pace)(self._search(prices, case, now))
        like = [one for one in self._found if one[0] == max_gamma]
        return self._found[min(like, key=lambda one: abs(one[1] - case[1]))] if like else None

    def book_probe(self, loss_us: float, num_unread: int) -> bool:
        """Return whether a probe is within the budget, and if so book it.

        Args:
            loss_us: of its rounds.
            num_unread: tokens that the drafter has to read first.
        """
        is_due = self._credit_us >= loss_us + self.costs.draft_prompt_us(num_unread)
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
        if not self._copies:
            # A draft that was sampled holds for one round. What it costs counts all the same.
            return prices if prices.drafter_price is not None else prices._replace(draft_us=0.0)
        alone_us = prices.forward_us(prices.sessions, prices.sessions)
        return prices._replace(overhead_us=0.0, token_us=0.0, resume_us=0.0, draft_us=0.0, alone_us=alone_us)

    def _search(self, prices: Prices, case: _Case, now: int) -> Generator[None]:
        last, running = self._found.get(case), self._running[case[1]]
        text, choice = self.text(), last.choice if last else None
        runs = choice if choice is not None and choice.running and choice.drafts else None
        running.learn(1 / rate(text, runs, prices) if runs else None)
        prices = prices._replace(running_pace=running.pace)
        try:
            found = self._found[case] = yield from search(text, prices, case[0], choice)
            if choice is None or choice.drafts != found.choice.drafts:
                self._turned_at[case] = self._num_verdicts[case[1]]
        finally:
            most = max(MOST_VERDICTS, SEARCH_US / EXPLORED / prices.alone_us) * prices.sessions
            since = max(now, turned_at := self._turned_at[case])
            self._due_at[case] = since + min(max(since - turned_at, FIRST_VERDICTS), most)


class RunningPace:
    """How much longer texts with a running draft take than is expected of them."""

    def __init__(self) -> None:
        self.pace = 1.0
        self._seen = [0, 0, 0]
        """``verify_us``, ``waited_us`` and tokens."""

    def observe(self, record: RoundRecord) -> None:
        """Learn from a verdict."""
        if record.plan.running_gamma and record.timing.typical:
            one = record.verdict.verify_us, record.verdict.waited_us, record.num_tokens
            self._seen = [old + new for old, new in zip(self._seen, one, strict=True)]

    def learn(self, token_us: float | None) -> None:
        """Take what was seen since the last time into account; a token was expected to take ``token_us``. None: nothing
        runs, and what kept it from paying may have changed meanwhile.
        """
        verify_us, waited_us, tokens = self._seen
        if token_us is None:
            self.pace += FORGOTTEN_SHARE * (1.0 - self.pace)
        elif tokens < LEAST_RUN:
            return
        else:
            # Verdicts come in bursts: one is waited for, and the next one is there.
            seen = max(verify_us, waited_us) / (tokens * token_us)
            self.pace += RUNNING_SHARE * (min(max(seen, 0.5), 4.0) - self.pace)
        self._seen = [0, 0, 0]
