"""How far to draft: a choice, and what it comes to."""

from typing import NamedTuple

from orchestrator.policy.auto.agreement import BUCKET_EDGES, bucket_of
from orchestrator.policy.auto.prices import Prices
from specgate.types import ALWAYS_SOLO

EASY_FROM = 0.5
EASY_BUCKET = bucket_of(EASY_FROM)


class PlanChoice(NamedTuple):
    """How far to draft.

    In the first ``closed`` buckets of confidence the target goes on alone. Else a round has ``easy`` draft tokens where
    the text is easy: the round before stood as a whole, and the target's confidence is 0.5 or more; and ``hard`` ones
    where it is not.
    """

    closed: int
    hard: int
    easy: int

    def gamma(self, *, easy: bool) -> int:
        """Return how many draft tokens a round has."""
        return self.easy if easy else self.hard

    @property
    def solo_below(self) -> float:
        """The same as the verifier's gate."""
        return (0.0, *BUCKET_EDGES, ALWAYS_SOLO)[self.closed]

    def acts_as(self, other: "PlanChoice") -> bool:
        """Return whether ``other`` does the same. Of the target alone only probes ask how far they should draft."""
        return self == other or not (self.drafts or other.drafts)

    @property
    def drafts(self) -> bool:
        """Whether any round comes back to the gateway."""
        return self.closed <= len(BUCKET_EDGES)


def even(gamma: int) -> PlanChoice:
    """Return the choice of ``gamma`` draft tokens in every round."""
    return PlanChoice(0, gamma, gamma)


class RoundYield(NamedTuple):
    """What a round comes to on average: tokens, rows in the forward, microseconds besides it, forwards waited for.

    A token that the target decodes alone counts as a round; ``alone`` is their share. ``waits``, and what its forward
    takes more than by the line, ``lone_us``, are those of a session that has the verifier to itself.
    """

    tokens: float
    rows: float
    besides_us: float
    waits: float
    alone: float
    lone_us: float = 0.0


class Load(NamedTuple):
    """What a choice comes to where all sessions follow it: how long a round takes, tokens per microsecond of each.

    ``alone``: the share of rounds that are a token of the target alone.
    """

    cycle_us: float
    rate: float
    alone: float


LOAD_TURNS, SETTLED = 32, 1e-3
"""To find out how long shared forwards are; mostly it takes five until all changes by no more than such a share."""


def load(outcome: RoundYield, prices: Prices) -> Load:
    """Return what rounds of such an outcome come to, the forwards being shared as they are then."""
    if prices.sessions > 1:
        cycle_us = _shared_cycle_us(outcome, prices)
    else:
        forward_us = prices.forward(outcome.rows, lone_us=outcome.lone_us)
        cycle_us = forward_us + outcome.besides_us + outcome.waits * forward_us
    return Load(cycle_us, outcome.tokens / cycle_us, outcome.alone)


def _shared_cycle_us(outcome: RoundYield, prices: Prices) -> float:
    """Return the time between two verdicts of a session.

    How long forwards take hangs on who is in them, and that on how long they take: a fixed point, found by turns.
    """
    num_rounds = 1 - outcome.alone
    # Rounds alone leave the verifier. What it takes besides a forward, all wait for who are there.
    besides_us = outcome.besides_us - outcome.alone * prices.solo_us
    away_us = besides_us / num_rounds if num_rounds else 0.0
    turn_us = prices.solo_us + prices.forward(outcome.rows, lone_us=outcome.lone_us)
    cycle_us = turn_us + besides_us
    for _ in range(LOAD_TURNS):
        turn_before_us, cycle_before_us = turn_us, cycle_us
        cycle_us = turn_us + besides_us + num_rounds * prices.wait_us(away_us, turn_us, turn_us / cycle_us)
        batch = prices.batch(turn_us / cycle_us)
        turn_us = prices.solo_us + prices.forward(batch * outcome.rows, batch, outcome.lone_us)
        if abs(turn_us - turn_before_us) + abs(cycle_us - cycle_before_us) <= SETTLED * turn_us:
            break
    return cycle_us
