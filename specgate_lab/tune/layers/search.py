"""The search itself: trials, one forward of the recorded texts each."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Judged, MeasuredTimes, Ranks, agreement, predict
from specgate_lab.tune.layers.study import LayerStudy

MOST_REPEATED = 3
"""Trials for each set that is wanted: a sampler that is sure of itself proposes the same set again and again."""

OnTrial = Callable[[int, Judged | None], None]
"""Called with how many sets were tried, and the best of them."""


class Scorer(Protocol):
    """Says where a target without some of its blocks would draft the recorded texts."""

    async def ranks(self, skip: BlockSet, num_texts: int) -> list[Ranks]: ...


class LayerSearch:
    """Tries sets of blocks on recorded texts.

    Args:
        num_texts: that were recorded; one half of them measures each block alone.
        run_ahead: whether the drafter runs ahead.
    """

    def __init__(
        self, scorer: Scorer, blocks: Blocks, times: MeasuredTimes, num_texts: int, *, run_ahead: bool
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

    async def run(
        self, study: LayerStudy, first: Sequence[Sequence[str]], num_sets: int, on_trial: OnTrial
    ) -> list[Judged]:
        """Try sets, those of ``first`` before others, until the study knows ``num_sets``; return the best one first."""
        known = {one.skip: one for one in study.judged(self._blocks)}
        sampler = study.sampler(self._blocks, first)
        on_trial(len(known), _best(known))
        while len(known) < num_sets and study.num_done < num_sets * MOST_REPEATED:
            trial, names = sampler.ask()
            skip = self._blocks.set_of(names)
            judged = known.get(skip)
            if judged is None and self._blocks.can_draft(skip):
                judged = known[skip] = await self._judge(skip)
            study.add(names, judged)
            sampler.tell(trial, judged)
            on_trial(len(known), _best(known))
        return sorted(known.values(), key=lambda one: -one.ratio)

    async def _judge(self, skip: BlockSet) -> Judged:
        ranks = await self._scorer.ranks(skip, self._num_texts)
        draft_us = self._times.draft_us(skip, self._blocks.num_layers)
        return Judged(skip, predict(ranks, draft_us, self._times, run_ahead=self._run_ahead))

    async def random_sets(self, like: BlockSet, count: int, seed: int) -> list[Judged]:
        """Return ``count`` random sets of as many blocks, the best one first."""
        draw = random.Random(seed)
        judged = [await self._judge(self._blocks.random_set(like, draw)) for _ in range(count)]
        return sorted(judged, key=lambda one: -one.ratio)


def _best(known: dict[BlockSet, Judged]) -> Judged | None:
    return max(known.values(), key=lambda one: one.ratio, default=None)
