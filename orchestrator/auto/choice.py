"""The mathematics: how far to draft at each confidence, so that tokens come fastest over the whole text.

The best γ of a round is not the one with the most tokens per second in that round: a sure place is worth a long draft
because many tokens are had there, even at a lower rate than a short draft would have. With r the tokens per second over
all rounds, a round is worth its tokens less r times its duration. The best choice in each bucket maximises that, and r
is what these choices come to: a fixed point, found in a few turns (Dinkelbach's method for a ratio of sums).

Where proposals are prepared ahead, one that is there costs no waiting. A choice then says two things: whether to come
back and look (the verifier alone does not), and how many tokens to ask for where nothing is there, 0 among them. And a
round is worth more by what it brings the next one: the longer its draft, the more time there is to prepare another, and
the harder it is to foresee. That is looked ahead for one round.

Under load a forward is shared. With s sessions and forwards that take f out of the t between two verdicts of a
session, about 1 + (s - 1) f / t sessions are in a forward together. One more of them, and its rows, make the forward
longer for all, which is counted as its own cost: what looks cheap to everybody would slow all of them down. As all
sessions plan by the same table, two tables may both be such that nobody gains by leaving them alone; so a table that
was found step by step is held against those with one γ for all buckets, 0 among them, which also keep the sessions in
step, and those with one γ from some confidence on.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchestrator.auto.costs import Prices
from orchestrator.auto.options import Ahead, Load, Option, drafts, with_ready

MAX_TURNS = 8
LOAD_TURNS = 4
FORESEEING_TURNS = 2
"""Of ``MAX_TURNS``: looking ahead takes longest, and changes little later on."""
INERTIA = 0.01
"""In tokens: how much better another γ must be than the one in use, so that the choice does not flap."""
SWITCH_GAIN = 1.01
"""How much faster a table of another kind must promise to be than the one in use."""
GATED_GAIN = 1.04
"""The same for one with a γ from some confidence on: it puts sessions out of step, which costs more than is known."""
LOOK = -1
"""The choice to use a proposal that is there, else to ask for none. 0 is the target alone, above it what to ask for."""

Choices = tuple[int, ...]


class Table(NamedTuple):
    """The choice for every bucket, from unsure to sure: 0, ``LOOK``, or how many tokens to ask for.

    ``probes`` is the best γ above 0 and ``losses_us`` what it costs against the choice. ``rate`` is in tokens per
    microsecond. ``ready`` is what a round with 0, 1, ... draft tokens is worth where they cost no time.
    """

    choices: Choices
    probes: tuple[int, ...]
    losses_us: tuple[float, ...]
    rate: float
    ready: tuple[tuple[float, ...], ...]
    prices: Prices

    @property
    def gammas(self) -> tuple[int, ...]:
        """How many tokens to ask for where nothing is there."""
        return tuple(max(choice, 0) for choice in self.choices)

    @property
    def num_closed(self) -> int:
        """How many buckets, from the unsure end and without a gap, are left to the target alone."""
        return next((index for index, choice in enumerate(self.choices) if choice), len(self.choices))

    @property
    def longest(self) -> int:
        """How much of a proposal that is there is used at the most; none where nobody comes back to look."""
        if not any(self.choices):
            return 0
        return max(max(range(len(worths)), key=worths.__getitem__) for worths in self.ready or [(0.0,)])

    def with_ready(self, bucket: int, num_ready: int) -> int:
        """Return how many tokens to ask for where ``num_ready`` are there."""
        return with_ready(self.ready[bucket], num_ready, self.rate, self.prices)[1]


class Chooser:
    """One search for the best table.

    Args:
        tokens: per bucket what a round emits on average with γ 0, 1, ..., where nothing is prepared.
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
        self._range = range(LOOK if ahead else 0, len(tokens[0]))
        self._missed = drafts(tokens, prices)
        self._ready = drafts(ahead.tokens, prices) if ahead else []
        self._hits = [options[0]._replace(besides_us=prices.there_us) for options in self._ready]
        self._options = self._make_options()

    def best(self, last: Sequence[int]) -> Table:
        """Return the best table to follow ``last``, a table's choices."""
        choices = self._settle(tuple(choice if choice in self._range else 0 for choice in last))
        if self._prices.sessions > 1:
            choices = self._simple_or(choices, tuple(last))
        load = self.load(choices)
        worths = self._worths(self._options, load)
        probes = tuple(max(range(1, self._range.stop), key=worth.__getitem__) for worth in worths)
        losses = (worth[choice] - worth[probe] for worth, choice, probe in zip(worths, choices, probes, strict=True))
        losses_us = tuple(loss / load.rate for loss in losses)
        ready = tuple(map(tuple, self._worths(self._ready, load)))
        return Table(choices, probes, losses_us, load.rate, ready, self._prices)

    def load(self, choices: Sequence[int]) -> Load:
        """Return what ``choices`` come to where all sessions follow them."""
        prices = self._prices
        made = [options[choice] for options, choice in zip(self._options, choices, strict=True)]
        tokens, width, besides_us, waits, _ = (self._mean(values) for values in zip(*made, strict=True))
        batch, forward_us, cycle_us = 1.0, prices.forward(width), 1.0
        for _ in range(LOAD_TURNS):
            cycle_us = forward_us + besides_us + waits * forward_us
            batch = prices.batch(forward_us / cycle_us)
            forward_us = prices.forward(batch * width, batch)
        return Load(batch, width, forward_us, tokens / cycle_us)

    def _make_options(self) -> list[list[Option]]:
        """Return what every choice comes to, by the choice, per bucket; the last one is that of ``LOOK``, -1."""
        prices = self._prices
        alone = Option(1.0, 1.0, prices.solo_us, 0.0)
        asked = [
            [option._replace(besides_us=prices.asked(gamma)) for gamma, option in enumerate(options) if gamma]
            for options in self._missed
        ]
        if self._ahead is None:
            return [[alone, *options] for options in asked]
        look = [options[0]._replace(besides_us=prices.bare_us) for options in self._missed]
        return [
            [alone, *(miss.or_else(hit, chance) for miss in [*options, none])]
            for options, none, hit, chance in zip(asked, look, self._hits, self._ahead.chances, strict=True)
        ]

    def _foresee(self, load: Load) -> None:
        """Work out what a round brings the next one, and what is best done where a proposal is there."""
        if self._ahead is None:
            return
        prices, after, rate = self._prices, self._ahead.after, load.rate
        gains = self._gains(load, {prospect.length for prospect in after})
        for bucket in (*self._missed, *self._ready):
            for gamma, prospect in enumerate(after):
                bucket[gamma] = bucket[gamma]._replace(future=prospect.chance * gains[prospect.length])
        length = after[min(max(round(load.width) - 1, 0), len(after) - 1)].length
        best = (with_ready(worths, length, rate, prices)[1] for worths in self._worths(self._ready, load))
        self._hits = [
            options[gamma]._replace(besides_us=prices.ready(gamma, length))
            for options, gamma in zip(self._ready, best, strict=True)
        ]
        self._options = self._make_options()

    def _gains(self, load: Load, lengths: Iterable[int]) -> dict[int, float]:
        """Return by how much a round is worth more if so many tokens are there for it, than if they were asked for."""
        prices, rate = self._prices, load.rate
        asked_us = [prices.bare_us, *map(prices.asked, range(1, self._range.stop))]
        ready = self._worths(self._ready, load, with_future=False)
        without = self._mean(
            max(worth - rate * us for worth, us in zip(worths, asked_us, strict=True)) for worths in ready
        )
        return {
            length: self._mean(with_ready(worths, length, rate, prices)[0] for worths in ready) - without
            for length in lengths
        }

    def _mean(self, values: Iterable[float]) -> float:
        return sum(visits * value for visits, value in zip(self._visits, values, strict=True))

    def _simple_or(self, found: Choices, last: Choices) -> Choices:
        """Return the fastest of ``found`` and the simple tables: with one γ for all buckets, or all from one on.

        Where ``last`` is one of them and about as fast, it stays.
        """
        even = [(choice,) * len(last) for choice in self._range]
        drafting = max((table for table in even if table[0] > 0), key=self._rate)
        best = max([found, self._settle(drafting), *even], key=self._rate)
        kept = last if last in even else found
        if self._rate(best) <= SWITCH_GAIN * self._rate(kept):
            best = kept
        gated, gain = self._gated(drafting[0], last)
        self._foresee(self.load(best))
        return gated if self._rate(gated) > gain * self._rate(best) else best

    def _gated(self, gamma: int, last: Choices) -> tuple[Choices, float]:
        """Return the fastest table with one γ from some bucket on, and how much faster than others it must be.

        Args:
            gamma: one to try, beside those near the one of ``last``.
        """
        size, used = len(last), last[-1]
        gammas = {gamma, *range(max(used - 1, 1), min(used + 2, self._range.stop))}
        tables = [(0,) * edge + (one,) * (size - edge) for one in gammas for edge in range(1, size)]
        best = max(tables, key=self._rate)
        if last in tables and self._rate(best) <= SWITCH_GAIN * self._rate(last):
            return last, 1 / SWITCH_GAIN
        return best, GATED_GAIN

    def _rate(self, choices: Choices) -> float:
        return self.load(choices).rate

    def _settle(self, start: Choices) -> Choices:
        """Return where choosing the best by the load, and the load by the choice, comes to rest."""
        choices = start
        for turn in range(MAX_TURNS):
            load = self.load(choices)
            if turn < FORESEEING_TURNS:
                self._foresee(load)
            worths = self._worths(self._options, load)
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
        worths = self._worths(self._options, self.load(choices))
        drafting = [max(opened, key=worth.__getitem__) for worth in worths]
        edges = range(len(choices) + 1)
        return max(((0,) * edge + tuple(drafting[edge:]) for edge in edges), key=self._rate)

    def _worths(
        self, options: Sequence[Sequence[Option]], load: Load, *, with_future: bool = True
    ) -> list[list[float]]:
        worths = [[load.worth(option, self._prices) for option in bucket] for bucket in options]
        if with_future:
            return worths
        return [
            [worth - option.future for worth, option in zip(known, bucket, strict=True)]
            for known, bucket in zip(worths, options, strict=True)
        ]

    def _best(self, worth: Sequence[float], last: int) -> int:
        best = max(self._range, key=worth.__getitem__)
        return best if worth[best] > worth[last] + INERTIA else last
