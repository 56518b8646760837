"""The search for the choice that would have been fastest on the texts of lately, at the prices of this moment.

Every candidate is rehearsed on the same texts, cut into its own rounds. So a choice is judged by the places where its
own rounds begin: those of long drafts begin where the text is hard, since they end there, and what is seen of them says
too little of short ones and too much of longer ones. And what a long draft leaves behind in an easy stretch of text is
in it, without a model of how texts go on.

Under load each candidate is taken to be followed by all sessions, so that what it costs others counts.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from orchestrator.policy.auto.agreement import NUM_BUCKETS
from orchestrator.policy.auto.calibration import Calibration, WaitKind
from orchestrator.policy.auto.history import TokenHistory
from orchestrator.policy.auto.options import Load, PlanChoice, even, load
from orchestrator.policy.auto.prices import Prices
from orchestrator.policy.auto.simulate import Ahead, Times, rehearse

FIRST_GAMMA = 3
FARTHEST = 2
"""Draft tokens by which one move changes all rounds: the farther from what was tried, the less a promise is worth."""
SWITCH_GAIN = 1.01
"""How much faster another choice must promise to be than the one in use."""
WORTH_DRAFTING = 1 / 1.02
"""Of what a lone session is promised with drafts everywhere. They are many and the target alone is one, so the best of
them tends to promise too much; and it takes long to find out about one that loses by a little."""
WORTH_GATED, WORTH_GATED_IN_A_CROWD = 1 / 1.04, 1 / 1.02
"""Of what is promised with a threshold, in place of that: of more to choose from, the highest is too high by more."""
MAX_SOLO_TOKENS = 128
"""Of one solo run: nothing else is tried before it ends."""
LEAST_ALONE = 0.01
"""Of all rounds: where next to none is closed, dividing by how many are says nothing."""


class Table(NamedTuple):
    """What is chosen; ``rate`` in tokens per microsecond.

    ``probe_loss_us`` is what a round loses that drafts where the choice is closed, ``catch_up_us`` what the first such
    one waits besides; without ``probes`` there are none. ``number`` counts a mode's tables, from 1 on; one that does
    the same as the one before has its number. ``most_solo`` tokens are the most of a solo run.
    """

    choice: PlanChoice
    rate: float
    probe_loss_us: float
    catch_up_us: float = 0.0
    number: int = 0
    most_solo: int = MAX_SOLO_TOKENS
    probes: bool = True


class Chooser:
    """One search.

    Args:
        max_gamma: the most draft tokens of a round.
        ahead: what is prepared; None: nothing.
        promises: what choices came to that were in use.
        may_close: a choice may leave something to the target alone.
    """

    def __init__(
        self,
        text: TokenHistory,
        prices: Prices,
        max_gamma: int,
        ahead: Ahead | None = None,
        calibration: Calibration | None = None,
        *,
        may_close: bool = True,
    ) -> None:
        self._text = text
        self._prices = prices
        self._max_gamma = max_gamma
        self._may_close = may_close
        self._ahead = ahead
        self._times: dict[tuple[int, bool], Times] = {}
        """By the most draft tokens of a choice, and whether it drafts."""
        self._calibration = calibration or Calibration()
        self._known: dict[PlanChoice, Load] = {}

    def search(self, last: PlanChoice | None, max_moves: int = 1) -> Generator[None, None, Table]:
        """Return the best choice that is found from ``last`` on, which stays where nothing is much better.

        It pauses after each rehearsal, which takes a part of a millisecond.

        Args:
            max_moves: how far it may lead. What little is known promises too much.
        """
        choice = last or even(min(FIRST_GAMMA, self._max_gamma))
        for _ in range(max_moves):
            for move in self._moves(choice):
                if move not in self._known:
                    self.load(move)
                    yield
            choice, before = self._next(choice), choice
            if choice == before:
                break
        return self._table(choice)

    def trial(self, choice: PlanChoice, reach: float) -> Table | None:
        """Return a table of the target alone; None if ``reach`` times what it promises is less than ``choice`` does."""
        alone = choice._replace(closed=NUM_BUCKETS)
        is_near = self._may_close and reach * self._promise(alone) >= self._promise(choice)
        return self._table(alone) if is_near else None

    def load(self, choice: PlanChoice) -> Load:
        """Return what ``choice`` comes to where all sessions follow it."""
        if choice not in self._known:
            kind = choice.easy, choice.drafts
            if kind not in self._times:
                self._times[kind] = _times(self._prices, *kind)
            outcome = rehearse(self._text, choice, self._times[kind], self._ahead)
            self._known[choice] = load(outcome, self._prices)
        return self._known[choice]

    def _table(self, choice: PlanChoice) -> Table:
        if not choice.drafts:
            return self._table_alone(choice)
        found, tried = self.load(choice), self.load(choice._replace(closed=0))
        # It is lost where the choice is closed, nowhere else.
        share_lost = max(1 - tried.rate / found.rate, 0.0)
        return Table(choice, found.rate, share_lost * tried.cycle_us / max(found.alone, LEAST_ALONE))

    def _table_alone(self, alone: PlanChoice) -> Table:
        # As far as would be drafted if anything were, where text is hard.
        opened = even(max((one for one in self._known if not one.closed), key=self._promise).hard)
        alone = opened._replace(closed=alone.closed)
        is_lone = self._prices.sessions == 1
        # A crowd's promises are of all sessions that draft, a probe is one of them.
        rate, tried_rate = map(self._promise if is_lone else self._rate, (alone, opened))
        tried, catch_up_us = self.load(opened), self._prices.catch_up_us if is_lone else 0.0
        loss_us = max(1 - tried_rate / rate, 0.0) * tried.cycle_us * tried.rate / tried_rate
        return Table(alone, self.load(alone).rate, loss_us, catch_up_us)

    def _rate(self, choice: PlanChoice) -> float:
        return self.load(choice).rate

    def _next(self, choice: PlanChoice) -> PlanChoice:
        """Return the best of what is one move away."""
        best = max(self._moves(choice), key=self._promise)
        return best if self._promise(best) > SWITCH_GAIN * self._promise(choice) else choice

    def _promise(self, choice: PlanChoice) -> float:
        crowded = self._prices.sessions > 1
        kept = self._calibration.kept(choice, crowded=crowded)
        if WaitKind.of(choice) is WaitKind.GATED:
            kept *= WORTH_GATED_IN_A_CROWD if crowded else WORTH_GATED
        elif choice.drafts and not crowded:
            kept *= WORTH_DRAFTING
        return self.load(choice).rate * kept

    def _moves(self, choice: PlanChoice) -> Iterator[PlanChoice]:
        """Yield what differs by one draft token somewhere or by its threshold, and even choices that are near."""
        closed, hard, easy = choice
        for pair in ((hard - 1, easy), (hard + 1, easy), (hard, easy - 1), (hard, easy + 1)):
            if 0 < pair[0] <= pair[1] <= self._max_gamma:
                yield PlanChoice(closed, *pair)
        # From the target alone there is no way that leads step by step.
        farthest = FARTHEST if choice.drafts else self._max_gamma
        for gamma in range(max(choice.hard - farthest, 1), min(choice.easy + farthest, self._max_gamma) + 1):
            yield even(gamma)
            if self._may_close and (choice.closed or self._prices.sessions > 1):
                yield from (even(gamma)._replace(closed=closed) for closed in range(1, NUM_BUCKETS))
        for closed in range(NUM_BUCKETS + 1 if self._may_close else 0):
            yield choice._replace(closed=closed)


def _times(prices: Prices, longest: int, drafts: bool) -> Times:
    gammas = range(longest + 1)
    none_us = prices.asked(0, longest)
    asked_us = [none_us + prices.token_us * gamma for gamma in gammas]
    begun_us = [prices.begun(gamma, longest) for gamma in gammas]
    lone_us = [prices.forwards.lone_us(gamma + 1) for gamma in gammas]
    solo_us = prices.solo_us if drafts or prices.sessions > 1 else prices.alone_us
    return Times(asked_us, begun_us, solo_us, prices.wait, lone_us)
