"""The mathematics: how far to draft at each confidence, so that tokens come fastest over the whole text.

The best γ of a round is not the one with the most tokens per second in that round: a sure place is worth a long draft
because many tokens are had there, even at a lower rate than a short draft would have. With r the tokens per second over
all rounds, a round is worth its tokens less r times its duration. The best choice in each bucket maximises that, and r
is what these choices come to: a fixed point, found in a few turns (Dinkelbach's method for a ratio of sums).

Where proposals are prepared ahead, one that is there costs no waiting. A choice then says two things: whether to come
back and look (the verifier alone does not), and how many tokens to ask for where nothing is there, 0 among them.

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
"""How much faster a table of another kind must promise to be than the one in use."""
LOOK = -1
"""The choice to use a proposal that is there, else to ask for none. 0 is the target alone, above it what to ask for."""

Choices = tuple[int, ...]


class Load(NamedTuple):
    """What a table comes to: sessions in a forward, rows of one of them, how long it takes, tokens per microsecond."""

    batch: float
    width: float
    forward_us: float
    rate: float


class Ahead(NamedTuple):
    """What is prepared: a proposal of some ``length``, there with a probability for every bucket."""

    length: int
    chances: Sequence[float]


class Table(NamedTuple):
    """The choice for every bucket, from unsure to sure: 0, ``LOOK``, or how many tokens to ask for.

    ``probes`` is the best γ above 0 and ``losses_us`` what it costs against the choice. ``rate`` is in tokens per
    microsecond. ``worths`` is what a round with 0, 1, ... draft tokens is ahead of the rate where they cost no time.
    """

    choices: Choices
    probes: tuple[int, ...]
    losses_us: tuple[float, ...]
    rate: float
    worths: tuple[tuple[float, ...], ...]
    prices: Prices

    @property
    def gammas(self) -> tuple[int, ...]:
        """How many tokens to ask for."""
        return tuple(max(choice, 0) for choice in self.choices)

    @property
    def num_closed(self) -> int:
        """How many buckets, from the unsure end and without a gap, are left to the target alone."""
        return next((index for index, choice in enumerate(self.choices) if choice), len(self.choices))

    def with_ready(self, bucket: int, num_ready: int) -> int:
        """Return how many tokens to ask for where ``num_ready`` are there."""
        return _best_ready(self.worths[bucket], num_ready, self.rate, self.prices)


class Option(NamedTuple):
    """What a choice comes to on average: tokens, rows in the forward, microseconds besides it, forwards waited for."""

    tokens: float
    rows: float
    besides_us: float
    waits: float

    def or_else(self, other: "Option", chance: float) -> "Option":
        """Return what comes of ``other`` with probability ``chance``, and of this one else."""
        tokens, rows, besides_us, waits = (mine + chance * (its - mine) for mine, its in zip(self, other, strict=True))
        return Option(tokens, rows, besides_us, waits)


class Chooser:
    """One search for the best table.

    Args:
        tokens: per bucket what a round emits on average with γ 0, 1, ...
        visits: per bucket how often a choice is made there.
        prices: what things cost now.
        ahead: what is prepared; None: nothing.
    """

    def __init__(
        self, tokens: Sequence[Sequence[float]], visits: Sequence[float], prices: Prices, ahead: Ahead | None = None
    ) -> None:
        total = sum(visits)
        self._visits = [count / total for count in visits]
        self._prices = prices
        self._ahead = ahead
        self._alone = Option(1.0, 1.0, prices.solo_us, 0.0)
        self._drafted = [
            [Option(emitted, gamma + 1, 0.0, prices.wait) for gamma, emitted in enumerate(known)] for known in tokens
        ]
        self._asked = [
            [option._replace(besides_us=prices.asked(gamma)) for gamma, option in enumerate(options) if gamma]
            for options in self._drafted
        ]
        self._hits = [options[0] for options in self._drafted]
        self._options = self._make_options()

    def best(self, last: Sequence[int]) -> Table:
        """Return the best table to follow ``last``, a table's choices."""
        choices = self._settle(tuple(choice if choice in self._range else 0 for choice in last))
        if self._prices.sessions > 1:
            choices = self._even_or(choices, tuple(last))
        load = self.load(choices)
        worths = self._worths(load)
        probes = tuple(max(range(1, self._range.stop), key=worth.__getitem__) for worth in worths)
        losses = (worth[choice] - worth[probe] for worth, choice, probe in zip(worths, choices, probes, strict=True))
        losses_us = tuple(loss / load.rate for loss in losses)
        worths_of_drafts = tuple(tuple(self._worth(one, load) for one in options) for options in self._drafted)
        return Table(choices, probes, losses_us, load.rate, worths_of_drafts, self._prices)

    def load(self, choices: Sequence[int]) -> Load:
        """Return what ``choices`` come to where all sessions follow them."""
        prices = self._prices
        tokens = width = besides_us = waits = 0.0
        for visits, options, choice in zip(self._visits, self._options, choices, strict=True):
            option = options[choice]
            tokens += visits * option.tokens
            width += visits * option.rows
            besides_us += visits * option.besides_us
            waits += visits * option.waits
        batch, forward_us, cycle_us = 1.0, prices.forward(width), 1.0
        for _ in range(LOAD_TURNS):
            cycle_us = forward_us + besides_us + waits * forward_us
            batch = prices.batch(forward_us / cycle_us)
            forward_us = prices.forward(batch * width, batch)
        return Load(batch, width, forward_us, tokens / cycle_us)

    @property
    def _range(self) -> range:
        return range(LOOK if self._ahead else 0, len(self._asked[0]) + 1)

    def _make_options(self) -> list[list[Option]]:
        """Return what every choice comes to, by the choice, per bucket; the last one is that of ``LOOK``, -1."""
        if self._ahead is None:
            return [[self._alone, *asked] for asked in self._asked]
        look = Option(1.0, 1.0, self._prices.there_us, self._prices.wait)
        return [
            [self._alone, *(miss.or_else(hit, chance) for miss in [*asked, look])]
            for asked, hit, chance in zip(self._asked, self._hits, self._ahead.chances, strict=True)
        ]

    def _foresee(self, load: Load) -> None:
        """Work out what is best done where a proposal is there."""
        if self._ahead is None:
            return
        prices, length = self._prices, self._ahead.length
        self._hits = []
        for options in self._drafted:
            worths = [self._worth(option, load) for option in options]
            gamma = _best_ready(worths, length, load.rate, prices)
            self._hits.append(options[gamma]._replace(besides_us=prices.ready(gamma, length)))
        self._options = self._make_options()

    def _even_or(self, uneven: Choices, last: Choices) -> Choices:
        """Return the fastest of ``uneven`` and the tables with one γ for all, or ``last`` where it is about as fast."""
        even = [(choice,) * len(last) for choice in self._range]
        drafting = self._settle(max((table for table in even if table[0] > 0), key=self._rate))
        best = max([uneven, drafting, *even], key=self._rate)
        kept = last if last in even else uneven
        return best if self._rate(best) > SWITCH_GAIN * self._rate(kept) else kept

    def _rate(self, choices: Choices) -> float:
        return self.load(choices).rate

    def _settle(self, start: Choices) -> Choices:
        """Return where choosing the best by the load, and the load by the choice, comes to rest."""
        choices = start
        for _ in range(MAX_TURNS):
            load = self.load(choices)
            self._foresee(load)
            worths = self._worths(load)
            chosen = tuple(self._best(worth, kept) for worth, kept in zip(worths, choices, strict=True))
            if chosen == choices:
                break
            choices = chosen
        return self._with_one_edge(choices)

    def _with_one_edge(self, choices: Choices) -> Choices:
        """Return a table whose closed buckets are the unsure ones: the verifier's gate is a threshold."""
        num_closed = next((index for index, choice in enumerate(choices) if choice), len(choices))
        if all(choices[num_closed:]):
            return choices
        opened = [choice for choice in self._range if choice]
        drafting = [max(opened, key=worth.__getitem__) for worth in self._worths(self.load(choices))]
        edges = range(len(choices) + 1)
        return max(((0,) * edge + tuple(drafting[edge:]) for edge in edges), key=self._rate)

    def _worths(self, load: Load) -> list[list[float]]:
        return [[self._worth(option, load) for option in options] for options in self._options]

    def _worth(self, option: Option, load: Load) -> float:
        """Return the tokens that a round is ahead of the rate, its cost to others included."""
        prices, others = self._prices, load.batch - 1
        cost_us = (
            option.besides_us
            + option.waits * load.forward_us
            + prices.forward(others * load.width + option.rows, load.batch)
            + others * (prices.session_us + prices.row_us * (option.rows - 1))
        )
        return option.tokens - load.rate * cost_us

    def _best(self, worth: Sequence[float], last: int) -> int:
        best = max(self._range, key=worth.__getitem__)
        return best if worth[best] > worth[last] + INERTIA else last


def _best_ready(worths: Sequence[float], num_ready: int, rate: float, prices: Prices) -> int:
    return max(range(len(worths)), key=lambda gamma: worths[gamma] - rate * prices.ready(gamma, num_ready))
