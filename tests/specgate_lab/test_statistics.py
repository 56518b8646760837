"""Percentiles, rates, and the bootstrap interval of a ratio."""

import random
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest

from specgate_lab.experiment import Sample
from specgate_lab.statistics import Interval, Percentiles, Rate, Ratio, percentile, ratio_interval


def measured(rate_of: Callable[[int, int], float], cases: int = 8, repeats: int = 3) -> list[Sample]:
    return [
        Sample(100, 100 / rate_of(case, repeat), case=case, repeat=repeat)
        for repeat in range(repeats)
        for case in range(cases)
    ]


def interval_of(ours: list[Sample], base: list[Sample]) -> Interval:
    found = ratio_interval(ours, base)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 2, 100])
def test_percentiles_are_numpys_of_what_is_there(count: int) -> None:
    values = sorted(np.random.default_rng(count).exponential(size=count).tolist())
    for share in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert percentile(values, share) == pytest.approx(np.percentile(values, share * 100))
    found = Percentiles.of([3.0, None, 1.0, 2.0])
    assert found is not None
    assert astuple(found) == pytest.approx((2000, 2800, 2980, 3000))
    assert Percentiles.of([None]) is None


def test_a_rate_is_the_median_over_repeats_of_all_cases_together() -> None:
    samples = [Sample(tokens, 1.0, case=case) for case, tokens in enumerate((50, 30))]
    samples += [Sample(tokens, 1.0, repeat=repeat) for repeat, tokens in enumerate((100, 60), start=1)]
    assert Rate.of(samples) == (60, 40, 100)
    assert Rate.of([Sample(0, 0.0)]).median == Ratio.of(samples, [Sample(0, 0.0)]).value == 0


def test_noise_that_both_variants_share_leaves_the_ratio_sure_and_the_same_seed_repeats_it() -> None:
    rng = random.Random(5)
    pace = {(case, repeat): rng.uniform(50, 150) for case in range(8) for repeat in range(3)}
    base = measured(lambda case, repeat: pace[case, repeat])
    low, high = interval_of(measured(lambda case, repeat: 2 * pace[case, repeat]), base)
    assert (round(low, 9), round(high, 9)) == (2, 2)
    own = measured(lambda *_: rng.uniform(50, 150))
    assert ratio_interval(own, base) == ratio_interval(own, base) != ratio_interval(own, base, seed=1)


def test_it_covers_the_truth_about_as_often_as_it_says() -> None:
    """Lognormal noise in every cell of both variants; the truth is the ratio of the two medians."""
    rng = random.Random(7)
    covered, widths = 0, []
    for _ in range(40):
        base = measured(lambda *_: 100 * rng.lognormvariate(0, 0.1))
        low, high = interval_of(measured(lambda *_: 130 * rng.lognormvariate(0, 0.1)), base)
        covered += low <= 1.3 <= high
        widths.append(high - low)
    assert covered >= 34
    assert max(widths) < 0.5


def test_few_pairs_tell_nothing_of_their_spread() -> None:
    few = measured(lambda *_: 100.0, cases=1, repeats=3)
    assert ratio_interval(few, few) is ratio_interval(few, []) is None
    assert ratio_interval(measured(lambda *_: 90.0, 1, 4), measured(lambda *_: 100.0, 1, 4)) == (0.9, 0.9)
