"""Choose γ and both confidence thresholds with the highest estimated tokens/s on recent text."""

import math
from collections.abc import Generator, Iterable
from typing import NamedTuple

from orchestrator.policy.auto.costs import Prices
from orchestrator.policy.auto.history import BUCKET_EDGES, NUM_BUCKETS, STOPS, TokenHistory, is_poor
from specgate.types import ALWAYS_SOLO

SWITCH_GAIN = 1.01
"""Estimated speed-up that another choice needs to replace the current one; less is within the error."""
POOR_GAIN = 1.03
"""The same for leaving poor texts alone: of several that were tried the best one looks better than it is."""
RUNNING_GAMMAS = (2, 4, 8)
"""Tried of a running draft: to simulate its times takes five times as long as to count rounds."""
LEAST_LOSS = 0.01
"""Least loss of a round that a probe is charged, as a share of it; it limits probes that seem free."""
TURNS = 6
"""Iterations of the fixed point in ``shared``; it converges in about five."""


class GammaChoice(NamedTuple):
    """The target decodes alone in the lowest ``closed`` buckets of confidence; else a round drafts ``gamma`` tokens,
    or fewer: a draft ends after its first token that is less sure than ``STOPS[stop]``. ``running``: nothing is asked
    for, and the target takes up to ``gamma`` tokens of those that have arrived. ``leaves_poor``: it decodes poor texts
    alone, so that the verifier's rows are for drafts that are likelier to be accepted.
    """

    closed: int
    gamma: int
    stop: int = 0
    running: bool = False
    leaves_poor: bool = False

    def of(self, agreement: float | None) -> "GammaChoice":
        """Return the choice for a text with this recent agreement."""
        return self.alone if self.leaves_poor and is_poor(agreement) else self

    def closed_states(self) -> list[bool]:
        """Return for each state whether the target decodes alone."""
        buckets = [bucket < self.closed for bucket in range(NUM_BUCKETS)]
        return buckets + [self.leaves_poor or closed for closed in buckets]

    @property
    def opened(self) -> "GammaChoice":
        """The choice that differs from this one in drafting everywhere."""
        return self._replace(closed=0, leaves_poor=False)

    @property
    def solo_below(self) -> float:
        """The threshold of the verifier's gate."""
        return (0.0, *BUCKET_EDGES, ALWAYS_SOLO)[self.closed]

    @property
    def stop_below(self) -> float:
        """The probability below which the draft ends."""
        return STOPS[self.stop]

    @property
    def drafts(self) -> bool:
        """Whether any round is drafted."""
        return self.closed < NUM_BUCKETS

    @property
    def alone(self) -> "GammaChoice":
        """The choice that differs from this one in drafting nothing."""
        return self._replace(closed=NUM_BUCKETS)


class RoundCounts(NamedTuple):
    """Counts of a choice on a text: tokens, rounds, solo tokens, draft tokens, and rounds behind a solo token."""

    tokens: int
    rounds: int
    solo: int
    drafted: int
    resumed: int = 0


def simulate(text: TokenHistory, choice: GammaChoice) -> RoundCounts:
    """Return the counts of ``text`` under ``choice``."""
    states, runs, ends = text
    closed, gamma, stop = choice.closed_states(), choice.gamma, choice.stop
    lengths = ends[stop] if ends else (gamma,) * len(runs)
    position, end, rounds, solo, drafted, resumed, alone = 0, len(runs), 0, 0, 0, 0, False
    while position < end:
        if closed[states[position]]:
            solo, position, alone = solo + 1, position + 1, True
        else:
            length, resumed, alone = min(lengths[position], gamma), resumed + alone, False
            rounds, drafted, position = rounds + 1, drafted + length, position + min(runs[position], length) + 1
    return RoundCounts(end, rounds, solo, drafted, resumed)


def running_us(text: TokenHistory, choice: GammaChoice, prices: Prices) -> float:
    """Return the microseconds that ``text`` takes with a running draft.

    Its tokens arrive one after the other. Behind one that the target did not choose, the next one is begun when the
    drafter hears of it. The target never waits: it takes what is there, or decodes alone.
    """
    closed, gamma = choice.closed_states(), choice.gamma
    sessions, draft_us = prices.sessions, max(prices.draft_us, 1.0)
    each_us = (prices.forward_us(sessions * (1 + rows), sessions) for rows in range(gamma + 1))
    forwards_us = [max(one, prices.message_us) for one in each_us]
    position = start = 0
    now_us, start_us = 0.0, prices.round_trip_us
    while position < len(text.runs):
        drafted = 0
        if not closed[text.states[position]] and now_us > start_us:
            arrived = start + int((now_us - start_us) / draft_us)
            drafted = min(max(arrived - position, 0), gamma)
        now_us += forwards_us[drafted]
        agreed = text.runs[position]
        position += min(agreed, drafted) + 1
        if agreed <= drafted:
            start, start_us = position, now_us + prices.round_trip_us
    return now_us * prices.running_pace


class Shared(NamedTuple):
    """``cycle_us`` lies between two verdicts of a session; ``batch`` sessions share a forward of ``forward_us``."""

    cycle_us: float
    batch: float
    forward_us: float


def shared(outcome: RoundCounts, prices: Prices) -> Shared:
    """Return how sessions share forwards if all of them follow the same choice.

    The time of a forward depends on the sessions that share it, and their number on that time (Little, 1961). The
    fixed point is found by iteration.
    """
    if not outcome.rounds:
        forward_us = min(prices.alone_us, prices.forward_us(prices.sessions, prices.sessions))
        return Shared(prices.alone_us, prices.sessions, forward_us)
    steps = outcome.rounds + outcome.solo
    rounds_us = outcome.rounds * prices.overhead_us + outcome.resumed * prices.resume_us
    away_us = (rounds_us + outcome.drafted * prices.token_us) / steps
    rows, sessions, round_share = 1 + outcome.drafted / steps, prices.sessions, outcome.rounds / steps
    away_each_us = away_us / round_share
    forward_us, batch = prices.forward_us(rows), 1.0
    us = forward_us + away_us
    for _ in range(TURNS if sessions > 1 else 0):
        share = min(forward_us / us, 1.0)
        batch = min(sessions * share / (1 - (1 - share) ** sessions), sessions)
        forward_us = prices.forward_us(batch * rows, batch)
        # A session waits for the rest of the forward that runs when it returns, on average at least half of it.
        others = 1 - (1 - share) ** (sessions - 1)
        us = forward_us + away_us + round_share * others * max(forward_us - away_each_us, forward_us / 2)
    return Shared(us, batch, forward_us)


def worth(outcome: RoundCounts, prices: Prices) -> float:
    """Return the tokens per microsecond of each session. Where tokens are to be cheap: of the verifier, at work for all
    together, where a microsecond of the drafter counts as ``drafter_price`` of those and waiting costs nothing.
    """
    steps, (us, batch, forward_us) = outcome.rounds + outcome.solo, shared(outcome, prices)
    if prices.drafter_price is not None:
        us = forward_us / batch + outcome.drafted / steps * prices.drafter_price * prices.draft_us / prices.sessions
    return outcome.tokens / steps / us


def rate(text: TokenHistory, choice: GammaChoice, prices: Prices) -> float:
    """Return what ``choice`` is ``worth`` on ``text``."""
    if choice.running and choice.drafts:
        return len(text.runs) / running_us(text, choice, prices)
    return worth(simulate(text, choice), prices)


class RatedChoice(NamedTuple):
    """A choice, its ``rate``, and the microseconds that a probe round loses; inf where no draft can pay.

    ``longest_run`` and ``ahead``, in tokens, are those of ``Prices``.
    """

    choice: GammaChoice
    rate: float
    probe_us: float
    longest_run: int
    ahead: int


def search(
    text: TokenHistory, prices: Prices, max_gamma: int, last: GammaChoice | None
) -> Generator[None, None, RatedChoice]:
    """Return the best choice, or ``last`` if no other is clearly better. Yields after each rate, about 0.1 ms."""

    def rated(rates: dict[GammaChoice, float], choices: Iterable[GammaChoice]) -> Generator[None, None, GammaChoice]:
        for one in choices:
            if one not in rates:
                rates[one] = rate(text, one, prices)
                yield
        return max(rates, key=rates.__getitem__)

    rates, fair = dict[GammaChoice, float](), dict[GammaChoice, float]()
    gammas, stops = range(1, max_gamma + 1), range(max(len(text.ends), 1))
    stop = (yield from rated(rates, (GammaChoice(0, gamma, stop) for gamma in gammas for stop in stops))).stop
    asked = [GammaChoice(0, gamma, stop) for gamma in gammas]
    running = [GammaChoice(0, gamma, running=True) for gamma in RUNNING_GAMMAS if prices.far and gamma <= max_gamma]
    best_open = yield from rated(rates, running)
    on_poor = yield from rated(fair, (one._replace(leaves_poor=True) for one in (best_open, *asked)))
    if fair[on_poor] > POOR_GAIN * rates[best_open]:
        rates, best_open = rates | fair, on_poor
    some = [one._replace(leaves_poor=best_open.leaves_poor) for one in asked] + [best_open] * best_open.running
    gated, alone = [one._replace(closed=closed) for one in some for closed in range(1, NUM_BUCKETS)], best_open.alone
    best = yield from rated(rates, (*gated, alone))
    if last is not None and (prices.far or not last.running):
        # What the draft was sure of may be forgotten.
        last = last if last.stop in stops else last._replace(stop=0)
        yield from rated(rates, [last])
        best = best if rates[best] > SWITCH_GAIN * rates[last] else last
    if best.running and rates[best] < SWITCH_GAIN * rates[alone]:
        # A draft that never comes in time changes nothing, and takes a drafter's time.
        best = alone
    opened = best.opened
    yield from rated(rates, [opened])
    lost = max(1 - rates[opened] / rates[best], LEAST_LOSS)
    if opened.running:
        probe_us = lost * prices.longest_run * prices.alone_us + prices.round_trip_us
    else:
        probe_us = lost * shared(simulate(text, opened), prices).cycle_us
    # Nothing is tried that would not pay if all of it was accepted, as fast as was told: it may be slow for a while.
    overhead_us, token_us = map(min, prices.told_us, (prices.overhead_us, prices.token_us))
    hoped = prices._replace(overhead_us=overhead_us, token_us=token_us)
    full = max(worth(RoundCounts(gamma + 1, 1, 0, gamma), hoped) for gamma in gammas)
    row_us = max(prices.draft_us, prices.forward_us(1 + max_gamma) / (1 + max_gamma)) if prices.far else math.inf
    probe_us = probe_us if full > rates[alone] or row_us < prices.alone_us else math.inf
    return RatedChoice(best, rates[best], probe_us, prices.longest_run, prices.ahead(best.gamma))
