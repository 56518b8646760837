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


@pytest.mark.parametrize(
    ("text", "draft_us", "overhead_us", "gamma", "ratio"),
    [
        ([0] * 900, 0.0, 0.0, 8, 9.0),
        # Each round costs a draft besides, but for the last token, before which nothing is drafted.
        ([1] * 100, 500.0, 0.0, 1, 100 / (99 * 1.5 + 1.0)),
        # With γ 2 the first round accepts two and is corrected, the second accepts two.
        ([0, 0, 1, 0, 0, 0], 100.0, 50.0, 2, 6 * 1000 / (2 * (1000 + 2 * 100 + 50))),
    ],
    ids=["free and always right", "always wrong", "by hand"],
)
def test_a_text_on_demand(text: list[int], draft_us: float, overhead_us: float, gamma: int, ratio: float) -> None:
    found = predict([text], draft_us, times(overhead_us=overhead_us), run_ahead=False)
    assert (found.gamma, found.agreement) == (gamma, agreement([text]))
    assert found.ratio == pytest.approx(ratio)


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


def test_the_times_of_blocks_follow_from_drafts_that_leave_some_out() -> None:
    measured = times(base_us=300.0)
    base, attention, mlp, misfit = fit([(skip, measured.draft_us(skip, 12)) for skip in probes(Blocks(12, True))], 12)
    assert (base, attention, mlp) == pytest.approx((300.0, 10.0, 20.0))
    assert misfit == pytest.approx(0.0, abs=1e-9)
    # Where only whole layers were left out both blocks count alike.
    found = fit([(skip, measured.draft_us(skip, 12)) for skip in probes(Blocks(12, False))], 12)
    layers = BlockSet(frozenset({1, 2, 3}), frozenset({1, 2, 3}))
    assert found[0] + 9 * (found[1] + found[2]) == pytest.approx(measured.draft_us(layers, 12))
