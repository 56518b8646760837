"""The mathematics: how far to draft at each confidence, so that tokens come fastest over the whole text.

The best γ of a round is not the one with the most tokens per second in that round: a sure place is worth a long draft
because many tokens are had there, even at a lower rate than a short draft would have. With r the tokens per second over
all rounds, a round is worth its tokens less r times its duration. The best choice in each bucket maximises that, and r
is what these choices come to: a fixed point, found in a few turns (Dinkelbach's method for a ratio of sums).

Under load a forward is shared. With s sessions and forwards that take f out of the t between two verdicts of a
session, about 1 + (s - 1) f / t sessions are in a forward together. One more of them, and its rows, make the forward
longer for all, which is counted as its own cost: what looks cheap to everybody would slow all of them down. As all
sessions plan by the same table, two tables may both be such that nobody gains by leaving them alone; so a table that
was found step by step is held against those with one γ for all buckets, 0 among them, which also keep the sessions in
step.
"""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.auto.costs import Prices

MAX_TURNS = 8
LOAD_TURNS = 4
INERTIA = 0.01
"""In tokens: how much better another γ must be than the one in use, so that the choice does not flap."""
SWITCH_GAIN = 1.01
"""Under load, how much faster a table of another kind must promise to be than the one in use."""


class Load(NamedTuple):
    """What a table comes to: sessions in a forward, rows of one of them, how long it takes, tokens per microsecond."""

    batch: float
    width: float
    forward_us: float
    rate: float


class Table(NamedTuple):
    """The choice for every bucket, from unsure to sure.

    ``gammas`` has 0 where the target should go on alone; ``probes`` is the best γ above 0 and ``losses_us`` what it
    costs against the choice. ``rate`` is in tokens per microsecond.
    """

    gammas: tuple[int, ...]
    probes: tuple[int, ...]
    losses_us: tuple[float, ...]
    rate: float

    @property
    def num_closed(self) -> int:
        """How many buckets, from the unsure end and without a gap, have γ 0."""
        return next((index for index, gamma in enumerate(self.gammas) if gamma), len(self.gammas))


class Chooser:
    """One search for the best table.

    Args:
        tokens: per bucket what a round emits on average with γ 0, 1, ...
        visits: per bucket how often a choice is made there.
        prices: what things cost now.
    """

    def __init__(self, tokens: Sequence[Sequence[float]], visits: Sequence[float], prices: Prices) -> None:
        total = sum(visits)
        self._tokens = tokens
        self._visits = [count / total for count in visits]
        self._prices = prices

    def best(self, last: Sequence[int]) -> Table:
        """Return the best table to follow ``last``."""
        gammas = self._settle(tuple(last))
        if self._prices.sessions > 1:
            gammas = self._even_or(gammas, tuple(last))
        load = self.load(gammas)
        worths = self._worths(load)
        probes = tuple(map(_likeliest, worths))
        losses = (worth[gamma] - worth[probe] for worth, gamma, probe in zip(worths, gammas, probes, strict=True))
        return Table(gammas, probes, tuple(loss / load.rate for loss in losses), load.rate)

    def load(self, gammas: Sequence[int]) -> Load:
        """Return what ``gammas`` come to where all sessions follow them."""
        prices = self._prices
        width = sum(visits * (gamma + 1) for visits, gamma in zip(self._visits, gammas, strict=True))
        batch, forward_us, cycle_us = 1.0, prices.forward(width), 1.0
        for _ in range(LOAD_TURNS):
            cycle_us = forward_us + sum(
                visits * prices.besides(gamma, forward_us) for visits, gamma in zip(self._visits, gammas, strict=True)
            )
            batch = prices.batch(forward_us / cycle_us)
            forward_us = prices.forward(batch * width, batch)
        tokens = sum(v * known[gamma] for v, known, gamma in zip(self._visits, self._tokens, gammas, strict=True))
        return Load(batch, width, forward_us, tokens / cycle_us)

    def _even_or(self, uneven: tuple[int, ...], last: tuple[int, ...]) -> tuple[int, ...]:
        """Return the fastest of ``uneven`` and the tables with one γ for all, or ``last`` where it is about as fast."""
        even = [(gamma,) * len(last) for gamma in range(len(self._tokens[0]))]
        drafting = self._settle(max(even[1:], key=self._rate))
        best = max([uneven, drafting, *even], key=self._rate)
        kept = last if last in even else uneven
        return best if self._rate(best) > SWITCH_GAIN * self._rate(kept) else kept

    def _rate(self, gammas: tuple[int, ...]) -> float:
        return self.load(gammas).rate

    def _settle(self, start: tuple[int, ...]) -> tuple[int, ...]:
        """Return where choosing the best by the load, and the load by the choice, comes to rest."""
        gammas = start
        for _ in range(MAX_TURNS):
            worths = self._worths(self.load(gammas))
            chosen = tuple(_best(worth, kept) for worth, kept in zip(worths, gammas, strict=True))
            if chosen == gammas:
                break
            gammas = chosen
        return self._with_one_edge(gammas)

    def _with_one_edge(self, gammas: tuple[int, ...]) -> tuple[int, ...]:
        """Return a table whose closed buckets are the unsure ones: the verifier's gate is a threshold."""
        num_closed = next((index for index, gamma in enumerate(gammas) if gamma), len(gammas))
        if all(gammas[num_closed:]):
            return gammas
        drafting = [_likeliest(worth) for worth in self._worths(self.load(gammas))]
        edges = range(len(gammas) + 1)
        return max(((0,) * edge + tuple(drafting[edge:]) for edge in edges), key=self._rate)

    def _worths(self, load: Load) -> list[list[float]]:
        """Return per bucket and γ the tokens that a round is ahead of the rate, its cost to others included."""
        others = load.batch - 1
        costs_us = [
            self._prices.besides(gamma, load.forward_us)
            + self._prices.forward(others * load.width + gamma + 1, load.batch)
            + others * (self._prices.session_us + self._prices.row_us * gamma)
            for gamma in range(len(self._tokens[0]))
        ]
        return [
            [tokens - load.rate * cost_us for tokens, cost_us in zip(known, costs_us, strict=True)]
            for known in self._tokens
        ]


def _best(worth: Sequence[float], last: int) -> int:
    best = max(range(len(worth)), key=worth.__getitem__)
    return best if worth[best] > worth[last] + INERTIA else last


def _likeliest(worth: Sequence[float]) -> int:
    """Return the best γ above 0."""
    return max(range(1, len(worth)), key=worth.__getitem__)
