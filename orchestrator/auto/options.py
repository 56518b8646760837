"""How far to draft: a choice, and what it comes to."""

from typing import NamedTuple

from orchestrator.auto.agreement import BUCKET_EDGES, bucket_of
from orchestrator.auto.costs import Prices
from specgate.types import ALWAYS_SOLO

EASY_BUCKET = bucket_of(0.5)


class Choice(NamedTuple):
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

    def acts_as(self, other: "Choice") -> bool:
        """Return whether ``other`` does the same. Of the target alone only probes ask how far they should draft."""
        return self == other or not (self.drafts or other.drafts)

    @property
    def drafts(self) -> bool:
        """Whether any round comes back to the gateway."""
        return self.closed <= len(BUCKET_EDGES)


def even(gamma: int) -> Choice:
    """Return the choice of ``gamma`` draft tokens in every round."""
    return Choice(0, gamma, gamma)


class Outcome(NamedTuple):
    """What a round comes to on average: tokens, rows in the forward, microseconds besides it, forwards waited for.

    A token that the target decodes alone counts as a round; ``alone`` is their share. ``lone_us`` is what its forward
    takes more than by the line, where a session has it to itself.
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


LOAD_TURNS = 4


def load(outcome: Outcome, prices: Prices) -> Load:
    """Return what rounds of such an outcome come to, the forwards being shared as they are then.

    With s sessions and forwards that take f out of the t between two verdicts of a session, about 1 + (s - 1) f / t
    sessions are in a forward together.
    """
    tokens, rows, besides_us, waits, alone, lone_us = outcome
    forward_us, cycle_us = prices.forward(rows, lone_us=lone_us), 1.0
    for _ in range(LOAD_TURNS if prices.sessions > 1 else 1):
        cycle_us = forward_us + besides_us + waits * forward_us
        batch = prices.batch(forward_us / cycle_us)
        forward_us = prices.forward(batch * rows, batch, lone_us)
    return Load(cycle_us, tokens / cycle_us, alone)
