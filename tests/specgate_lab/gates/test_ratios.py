"""Rates and the bounds of their ratios."""

import random
from typing import Any

import pytest

from specgate_lab.gates.ratios import MIN_BLOCKS, Block, RateRatio, rate, ratio


def test_a_rate_is_all_tokens_over_all_seconds_and_what_both_suffer_alike_widens_no_ratio() -> None:
    assert rate([Block(10, 1.0), Block(30, 1.0)]) == 20
    draw = random.Random(3)
    slow = [Block(100, draw.uniform(1, 9)) for _ in range(20)]
    fast = [Block(100, block.seconds / 1.25) for block in slow]
    assert ratio(fast, slow) == pytest.approx((1.25, 1.25, 1.25))


def test_the_interval_holds_the_value_and_narrows_with_blocks() -> None:
    def found(num_blocks: int) -> Any:
        draw = random.Random(5)
        one, other = ([Block(100, draw.uniform(0.8, 1.2)) for _ in range(num_blocks)] for _ in range(2))
        return ratio(one, other)

    few, many = found(8), found(200)
    assert all(one.low < one.value < one.high for one in (few, many))
    assert many.high - many.low < 0.5 * (few.high - few.low)


def test_few_blocks_tell_no_interval() -> None:
    few = [Block(10, 1.0)] * (MIN_BLOCKS - 1)
    assert ratio(few, few) == RateRatio(1.0, None, None)
    assert ratio([*few, few[0]], [*few, few[0]]) == RateRatio(1.0, 1.0, 1.0)
