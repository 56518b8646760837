"""The rule: of a handful of plans take the one that would have been fastest on recent texts, at these prices."""

from collections.abc import Generator
from typing import NamedTuple

from orchestrator.policy.auto.costs import Prices
from orchestrator.policy.auto.history import BUCKET_EDGES, NUM_BUCKETS, TokenHistory
from specgate.types import ALWAYS_SOLO

SWITCH_GAIN = 1.01
"""How much faster another choice must promise to be than the one in use: less is within what prices err by."""
TURNS = 6
"""To find out how long shared forwards are: after five next to nothing changes."""


class Choice(NamedTuple):
    """In the first ``closed`` buckets of confidence the target goes on alone, else a round has ``gamma`` draft ones."""

    closed: int
    gamma: int

    @property
    def solo_below(self) -> float:
        """The same as the verifier's gate."""
        return (0.0, *BUCKET_EDGES, ALWAYS_SOLO)[self.closed]

    @property
    def drafts(self) -> bool:
        """Whether any round is drafted."""
        return self.closed < NUM_BUCKETS


class Outcome(NamedTuple):
    """What a choice would have come to on a text: numbers of tokens, rounds, solo tokens and draft tokens."""

    tokens: int
    rounds: int
    solo: int
    drafted: int


def simulate(text: TokenHistory, choice: Choice) -> Outcome:
    """Cut ``text`` into the rounds of ``choice``."""
    buckets, runs = text
    closed, gamma = choice
    position, end, rounds, solo = 0, len(runs), 0, 0
    while position < end:
        if buckets[position] < closed:
            solo, position = solo + 1, position + 1
        else:
            rounds, position = rounds + 1, position + min(runs[position], gamma) + 1
    return Outcome(end, rounds, solo, rounds * gamma)


def cycle_us(outcome: Outcome, prices: Prices) -> float:
    """Return the time between two verdicts of a session, where all sessions follow the same choice.

    How long forwards take depends on who shares them, and that on how long they take: in the time of a forward as
    many sessions are in it as make up the shares of all (Little, 1961). A fixed point, found by turns.
    """
    if prices.sessions == 1 and not outcome.rounds:
        return prices.alone_us
    steps = outcome.rounds + outcome.solo
    away_us = (outcome.rounds * prices.overhead_us + outcome.drafted * prices.token_us) / steps
    rows, sessions, round_share = 1 + outcome.drafted / steps, prices.sessions, outcome.rounds / steps
    away_each_us = away_us / round_share if outcome.rounds else 0.0
    forward_us = prices.forward_us(rows)
    us = forward_us + away_us
    for _ in range(TURNS if sessions > 1 else 0):
        share = min(forward_us / us, 1.0)
        batch = min(sessions * share / (1 - (1 - share) ** sessions), sessions)
        forward_us = prices.forward_us(batch * rows, batch)
        # Others began theirs when it left: it waits for the rest of that one, or for half of one that came meanwhile.
        others = 1 - (1 - share) ** (sessions - 1)
        us = forward_us + away_us + round_share * others * max(forward_us - away_each_us, forward_us / 2)
    return us


def rate(text: TokenHistory, choice: Choice, prices: Prices) -> float:
    """Return the tokens per microsecond of each session."""
    outcome = simulate(text, choice)
    return outcome.tokens / (outcome.rounds + outcome.solo) / cycle_us(outcome, prices)


class Found(NamedTuple):
    """A choice, its ``rate``, and what a round loses that drafts where the choice is closed."""

    choice: Choice
    rate: float
    probe_us: float


def search(text: TokenHistory, prices: Prices, max_gamma: int, last: Choice | None) -> Generator[None, None, Found]:
    """Return the best choice, or ``last`` where no other is much better. Pauses after each rate, about 0.1 ms."""
    rates: dict[Choice, float] = {}
    open_choices = [Choice(0, gamma) for gamma in range(1, max_gamma + 1)]
    yield from _rate_all(rates, open_choices, text, prices)
    best_open = max(open_choices, key=rates.__getitem__)
    gated = [one._replace(closed=closed) for one in open_choices for closed in range(1, NUM_BUCKETS)]
    yield from _rate_all(rates, [*gated, best_open._replace(closed=NUM_BUCKETS)], text, prices)
    best = max(rates, key=rates.__getitem__)
    if last is not None:
        yield from _rate_all(rates, [last], text, prices)
        best = best if rates[best] > SWITCH_GAIN * rates[last] else last
    opened = best._replace(closed=0)
    yield from _rate_all(rates, [opened], text, prices)
    lost = max(1 - rates[opened] / rates[best], 0.0)
    return Found(best, rates[best], lost * cycle_us(simulate(text, opened), prices))


def _rate_all(
    rates: dict[Choice, float], choices: list[Choice], text: TokenHistory, prices: Prices
) -> Generator[None, None, None]:
    for choice in choices:
        if choice not in rates:
            rates[choice] = rate(text, choice, prices)
            yield
