"""The bootstrap interval of a ratio."""

import random

from specgate_lab.throughput.interval import Interval, ratio_interval
from specgate_lab.throughput.samples import Sample


def measured(rate_of, prompts: int = 8, repeats: int = 3) -> list[Sample]:
    return [
        Sample(prompt, repeat, (), 100, 100 / rate_of(prompt, repeat))
        for repeat in range(repeats)
        for prompt in range(prompts)
    ]


def interval_of(ours: list[Sample], base: list[Sample]) -> Interval:
    found = ratio_interval(ours, base)
    assert found is not None
    return found


def test_noise_that_both_rows_share_leaves_the_ratio_sure_and_the_same_seed_repeats_it() -> None:
    rng = random.Random(5)
    pace = {(prompt, repeat): rng.uniform(50, 150) for prompt in range(8) for repeat in range(3)}
    base = measured(lambda prompt, repeat: pace[prompt, repeat])
    low, high = interval_of(measured(lambda prompt, repeat: 2 * pace[prompt, repeat]), base)
    assert (round(low, 9), round(high, 9)) == (2, 2)
    own = measured(lambda *_: rng.uniform(50, 150))
    assert ratio_interval(own, base) == ratio_interval(own, base) != ratio_interval(own, base, seed=1)


def test_prompts_that_differ_widen_it() -> None:
    low, high = interval_of(measured(lambda prompt, _: 100.0 + 20 * prompt), measured(lambda *_: 100.0))
    assert 1.2 < low < 1.6 < high < 2.2


def test_it_covers_the_truth_about_as_often_as_it_says() -> None:
    """Lognormal noise in every cell of both rows; the truth is the ratio of the two medians."""
    rng = random.Random(7)
    covered, widths = 0, []
    for _ in range(40):
        base = measured(lambda *_: 100 * rng.lognormvariate(0, 0.1))
        ours = measured(lambda *_: 130 * rng.lognormvariate(0, 0.1))
        low, high = interval_of(ours, base)
        covered += low <= 1.3 <= high
        widths.append(high - low)
    assert covered >= 34
    assert max(widths) < 0.5


def test_one_cell_tells_nothing_of_its_spread() -> None:
    one = measured(lambda *_: 100.0, prompts=1, repeats=1)
    assert ratio_interval(one, one) is ratio_interval(one, []) is None
    assert ratio_interval(measured(lambda *_: 90.0, 1, 2), measured(lambda *_: 100.0, 1, 2)) == (0.9, 0.9)
