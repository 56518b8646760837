"""How far to draft: a choice, and what it comes to."""

from typing import NamedTuple

from orchestrator.auto.agreement import BUCKET_EDGES, bucket_of
from orchestrator.auto.costs import Prices
from specgate.types import ALWAYS_SOLO

EASY_BUCKET = bucket_of(0.5)


class Choice(NamedTuple):
    """How far to draft.

    In the first ``closed`` buckets of confidence the target goes on alone. Else it hangs on whether the text is easy
    here: the round before stood as a whole, and the target's confidence is 0.5 or more. Each pair is for where it is
    not, and for where it is: ``asked`` draft tokens are asked for where nothing is there, none is to look and no more;
    where something is, as much of it is used as there is, but ``reach`` tokens at least, which are asked for, and
    ``most`` at the most.
    """

    closed: int
    asked: tuple[int, int]
    reach: tuple[int, int]
    most: int

    def gamma(self, num_ready: int, *, easy: bool) -> int:
        """Return how many draft tokens a round has for which ``num_ready`` are there."""
        return min(max(num_ready, self.reach[easy]), self.most) if num_ready else self.asked[easy]

    @property
    def longest(self) -> int:
        """How many draft tokens a round has at the most."""
        return max(self.asked[1], self.most)

    @property
    def solo_below(self) -> float:
        """The same as the verifier's gate."""
        return (0.0, *BUCKET_EDGES, ALWAYS_SOLO)[self.closed]

    @property
    def looks(self) -> bool:
        """Whether a round hangs on what is there."""
        return self.asked != self.reach or self.most > min(self.reach)

    @property
    def drafts(self) -> bool:
        """Whether any round comes back to the gateway, at least to look."""
        return self.closed <= len(BUCKET_EDGES)


def even(gamma: int) -> Choice:
    """Return the choice of ``gamma`` draft tokens in every round."""
    return Choice(0, (gamma, gamma), (gamma, gamma), gamma)


class Outcome(NamedTuple):
    """What a round comes to on average: tokens, rows in the forward, microseconds besides it, forwards waited for.

    A token that the target decodes alone counts as a round.
    """

    tokens: float
    rows: float
    besides_us: float
    waits: float


class Load(NamedTuple):
    """What a choice comes to where all sessions follow it: how long a round takes, tokens per microsecond of each."""

    cycle_us: float
    rate: float


LOAD_TURNS = 4


def load(outcome: Outcome, prices: Prices) -> Load:
    """Return what rounds of such an outcome come to, the forwards being shared as they are then.

    With s sessions and forwards that take f out of the t between two verdicts of a session, about 1 + (s - 1) f / t
    sessions are in a forward together.
    """
    tokens, rows, besides_us, waits = outcome
    forward_us, cycle_us = prices.forward(rows), 1.0
    for _ in range(LOAD_TURNS if prices.sessions > 1 else 1):
        cycle_us = forward_us + besides_us + waits * forward_us
        batch = prices.batch(forward_us / cycle_us)
        forward_us = prices.forward(batch * rows, batch)
    return Load(cycle_us, tokens / cycle_us)
