"""How sure a ratio of two rows is: a bootstrap over prompts and repeats. Pure."""

import random
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from specgate_lab.load.summary import percentile
from specgate_lab.throughput.samples import Sample

NUM_RESAMPLES = 1000
_TAIL = 0.025

Cell = tuple[int, int]
"""Prompt and repeat."""


class Interval(NamedTuple):
    """Where the middle 95 % of the resamples lie."""

    low: float
    high: float


class _Work(NamedTuple):
    tokens: int
    seconds: float


def ratio_interval(samples: Sequence[Sample], base: Sequence[Sample], seed: int = 0) -> Interval | None:
    """Return the 95 % interval of the rate of ``samples`` over that of ``base``, None with less than two cells.

    Each resample draws prompts and repeats with replacement, the same for both rows, because they were measured side by
    side; then it takes what the table tells: the median over repeats of the tokens a second over prompts. So the
    interval holds both the noise of the machine and the choice of the prompts.
    """
    ours, theirs = _cells(samples), _cells(base)
    common = sorted(ours.keys() & theirs.keys())
    if len(common) < 2:
        return None
    prompts, repeats = sorted({prompt for prompt, _ in common}), sorted({repeat for _, repeat in common})
    rng = random.Random(seed)
    ratios = []
    for _ in range(NUM_RESAMPLES):
        drawn_prompts = rng.choices(prompts, k=len(prompts))
        drawn_repeats = rng.choices(repeats, k=len(repeats))
        drawn = [[(prompt, repeat) for prompt in drawn_prompts] for repeat in drawn_repeats]
        ratios.append(_median_rate(ours, drawn) / (_median_rate(theirs, drawn) or float("inf")))
    ratios.sort()
    return Interval(percentile(ratios, _TAIL), percentile(ratios, 1 - _TAIL))


def _cells(samples: Sequence[Sample]) -> dict[Cell, _Work]:
    cells: defaultdict[Cell, _Work] = defaultdict(lambda: _Work(0, 0.0))
    for one in samples:
        tokens, seconds = cells[one.prompt, one.repeat]
        cells[one.prompt, one.repeat] = _Work(tokens + one.decode_tokens, seconds + one.decode_s)
    return dict(cells)


def _median_rate(cells: dict[Cell, _Work], drawn: Sequence[Sequence[Cell]]) -> float:
    return median(_rate([cells[cell] for cell in repeat if cell in cells]) for repeat in drawn)


def _rate(works: Sequence[_Work]) -> float:
    seconds = sum(work.seconds for work in works)
    return sum(work.tokens for work in works) / seconds if seconds > 0 else 0.0
