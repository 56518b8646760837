"""The predicted rate: by hand for short texts, and where it must be one."""

import pytest

from specgate.types import ForwardCost
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.costs import fit, probes
from specgate_lab.tune.layers.predict import MeasuredTimes, agreement, predict

FLAT = tuple(ForwardCost(rows, 1000) for rows in (1, 2, 9))
"""A target whose forward takes as long for nine rows as for one."""


def times(**changes: float) -> MeasuredTimes:
    given = {"alone_us": 1000.0, "base_us": 0.0, "attention_us": 10.0, "mlp_us": 20.0, "ahead": 1.0, "overhead_us": 0.0}
    return MeasuredTimes(FLAT, **{**given, **changes})


def test_a_draft_that_takes_no_time_and_always_agrees_brings_all_its_tokens() -> None:
    found = predict([[0] * 900], 0.0, times(), run_ahead=False)
    assert (found.gamma, found.agreement) == (8, 1.0)
    assert found.ratio == pytest.approx(9.0)


def test_a_draft_that_never_agrees_brings_nothing() -> None:
    found = predict([[1] * 100], 500.0, times(), run_ahead=False)
    assert (found.gamma, found.agreement) == (1, 0.0)
    # Each round costs a draft besides, but for the last token, before which nothing is drafted.
    assert found.ratio == pytest.approx(100 / (99 * 1.5 + 1.0))


def test_a_text_by_hand() -> None:
    # Tokens 0 0 1 | 0 0 0: with γ 2 the first round accepts two and is corrected, the second accepts two.
    found = predict([[0, 0, 1, 0, 0, 0]], 100.0, times(overhead_us=50.0), run_ahead=False)
    assert found.agreement == pytest.approx(5 / 6)
    two = 2 * (1000 + 2 * 100 + 50)
    assert found.ratio == pytest.approx(6 * 1000 / two)
    assert found.gamma == 2


def test_run_ahead_hides_a_draft_that_was_guessed() -> None:
    text = [0] * 91
    on_demand, ahead = (predict([text], 300.0, times(overhead_us=200.0), run_ahead=one) for one in (False, True))
    # Four tokens are five forwards, 1500 µs beside a forward of 1000: five tokens a round, but for the first round.
    assert ahead.ratio > on_demand.ratio
    by_gamma = {gamma: (gamma + 1) / max(1.0, 0.3 * (gamma + 1)) for gamma in range(1, 9)}
    assert ahead.ratio == pytest.approx(max(by_gamma.values()), rel=0.1)
    assert ahead.gamma > 2


def test_run_ahead_is_lost_where_the_target_chooses_what_nobody_guessed() -> None:
    text = [0, 0, 4] * 30
    on_demand, ahead = (predict([text], 200.0, times(), run_ahead=one) for one in (False, True))
    assert ahead.ratio == pytest.approx(on_demand.ratio)


def test_agreement_counts_all_texts() -> None:
    assert agreement([[0, 1], [0, 0, 0, 2]]) == pytest.approx(4 / 6)


def test_what_blocks_take_is_found_from_drafts_that_leave_some_out() -> None:
    blocks = Blocks(12, True)
    told = times(base_us=300.0)
    base, attention, mlp, misfit = fit([(skip, told.draft_us(skip, 12)) for skip in probes(blocks)], 12)
    assert (base, attention, mlp) == pytest.approx((300.0, 10.0, 20.0))
    assert misfit == pytest.approx(0.0, abs=1e-9)


def test_where_only_whole_layers_were_left_out_both_blocks_count_alike() -> None:
    blocks = Blocks(12, False)
    found = fit([(skip, times(base_us=300.0).draft_us(skip, 12)) for skip in probes(blocks)], 12)
    layers = BlockSet(frozenset({1, 2, 3}), frozenset({1, 2, 3}))
    predicted = found[0] + 9 * (found[1] + found[2])
    assert predicted == pytest.approx(times(base_us=300.0).draft_us(layers, 12))


def test_times_are_the_same_when_they_come_back_from_a_file() -> None:
    assert MeasuredTimes.of_object(times().to_object()) == times()
