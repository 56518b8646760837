"""The search itself: trials, one forward of the recorded texts each."""

import random
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import MeasuredTimes, agreement, predict
from specgate_lab.tune.layers.scorer import BlockScorer
from specgate_lab.tune.layers.study import Judged, LayerStudy

MOST_REPEATED = 3
"""Trials for each set that is wanted: a sampler that is sure of itself proposes the same set again and again."""

OnTrial = Callable[[int, Judged | None], None]
"""Called with how many sets were tried, and the best of them."""


class RandomSets(NamedTuple):
    """Sets of as many blocks as the best one has, of any layers."""

    sets: tuple[Judged, ...]

    def mean_ratio(self, *, run_ahead: bool) -> float:
        return mean(one.prediction(run_ahead=run_ahead).ratio for one in self.sets)

    def middle(self, *, run_ahead: bool) -> Judged:
        """Return the set that is neither among the better nor among the worse ones."""
        ordered = sorted(self.sets, key=lambda one: one.prediction(run_ahead=run_ahead).ratio)
        return ordered[len(ordered) // 2]


class LayerSearch:
    """Tries sets of blocks on recorded texts.

    Args:
        num_texts: that were recorded; a half of them tells what each block alone is worth.
        run_ahead: which of the two predictions is to be made large.
    """

    def __init__(
        self, scorer: BlockScorer, blocks: Blocks, times: MeasuredTimes, num_texts: int, *, run_ahead: bool
    ) -> None:
        self._scorer = scorer
        self._blocks = blocks
        self._times = times
        self._num_texts = num_texts
        self._run_ahead = run_ahead

    async def harm(self, on_block: Callable[[], None]) -> dict[str, float]:
        """Return the share of agreement that is lost where a block alone is left out, by its name."""
        few = -(-self._num_texts // 2)
        harm = {}
        for name in self._blocks.names:
            harm[name] = 1 - agreement(await self._scorer.ranks(self._blocks.set_of([name]), few))
            on_block()
        return harm

    async def run(self, study: LayerStudy, num_sets: int, on_trial: OnTrial) -> None:
        """Try sets until the study knows ``num_sets``."""
        known = {one.skip: one for one in study.judged(self._blocks)}
        on_trial(len(known), self.best(known))
        while len(known) < num_sets and study.num_done < num_sets * MOST_REPEATED:
            trial, skip = study.ask(self._blocks)
            judged = known.get(skip)
            if judged is None and self._blocks.can_draft(skip):
                judged = known[skip] = await self.judge(skip)
            study.tell(trial, judged, run_ahead=self._run_ahead)
            on_trial(len(known), self.best(known))

    async def judge(self, skip: BlockSet) -> Judged:
        """Return what is predicted of a set."""
        ranks = await self._scorer.ranks(skip, self._num_texts)
        draft_us = self._times.draft_us(skip, self._blocks.num_layers)
        return Judged(
            skip,
            predict(ranks, draft_us, self._times, run_ahead=True),
            predict(ranks, draft_us, self._times, run_ahead=False),
        )

    async def random_sets(self, like: BlockSet, count: int, seed: int) -> RandomSets:
        """Return ``count`` random sets of as many blocks."""
        draw = random.Random(seed)
        return RandomSets(tuple([await self.judge(self._blocks.random_set(like, draw)) for _ in range(count)]))

    def best(self, known: dict[BlockSet, Judged]) -> Judged | None:
        """Return the set with the most tokens a second, None of nothing."""
        return max(known.values(), key=lambda one: one.prediction(run_ahead=self._run_ahead).ratio, default=None)
