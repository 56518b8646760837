"""The ceiling of a pair: its models' work and nothing else."""

from collections import Counter

import pytest

from orchestrator.bench.throughput.ceiling import ModelTimes, ceiling_of, ceiling_tokens_per_s, model_times
from orchestrator.decode.request import GenerationStats

TIMES = ModelTimes(draft_us={3: 3000.0, 5: 5000.0}, forward_us={1: 7000.0, 4: 8000.0, 6: 9000.0})


def test_a_round_is_a_draft_and_a_verification() -> None:
    assert ceiling_tokens_per_s({(3, 3): 1}, 0, TIMES) == pytest.approx(4 / 11e-3)
    assert ceiling_tokens_per_s({(3, 3): 2, (3, 0): 1}, 0, TIMES) == pytest.approx(9 / 33e-3)


def test_widths_and_solo_tokens_take_their_own_times() -> None:
    mixed = ceiling_tokens_per_s({(3, 2): 1, (5, 5): 1}, 2, TIMES)
    assert mixed == pytest.approx((3 + 6 + 2) / (11e-3 + 14e-3 + 14e-3))
    assert ceiling_tokens_per_s({}, 7, TIMES) == pytest.approx(1 / 7e-3)


@pytest.mark.parametrize(("hit_rate", "round_ms"), [(0.0, 11.0), (0.5, 9.5), (1.0, 8.0)])
def test_run_ahead_hides_the_drafts_that_it_hits(hit_rate: float, round_ms: float) -> None:
    assert ceiling_tokens_per_s({(3, 3): 10}, 0, TIMES, {3: hit_rate}) == pytest.approx(4 / round_ms * 1e3)


def test_a_draft_hides_no_longer_than_the_verification_lasts() -> None:
    dear = ModelTimes(draft_us={3: 20_000.0}, forward_us={4: 8000.0})
    assert ceiling_tokens_per_s({(3, 3): 1}, 0, dear, {3: 1.0}) == pytest.approx(4 / 20e-3)


def test_nothing_measured_has_no_ceiling() -> None:
    assert ceiling_tokens_per_s({}, 0, TIMES) is None
    assert ceiling_of([]) is None


def test_times_are_medians_by_width_over_all_requests() -> None:
    one = GenerationStats(
        rounds=3,
        draft_lengths=[3, 3, 5],
        prepared=[False] * 3,
        draft_us=[10, 30, 50],
        forwards_us=[(4, 100), (1, 70), (4, 200), (6, 300)],
        solo_tokens=1,
    )
    other = GenerationStats(
        rounds=1,
        draft_lengths=[3],
        prepared=[False],
        draft_us=[90],
        forwards_us=[(1, 80), (4, 900), (1, 75)],
        solo_tokens=2,
    )
    times = model_times([one, other])
    assert times.draft_us == {3: 30, 5: 50}
    assert times.forward_us == {1: 75, 4: 200, 6: 300}
    one.outcomes, other.outcomes = Counter({(3, 1): 2, (5, 5): 1}), Counter({(3, 3): 1})
    total_us = 3 * (30 + 200) + (50 + 300) + 3 * 75
    assert ceiling_of([one, other]) == pytest.approx((2 * 2 + 6 + 4 + 3) / total_us * 1e6)


def test_a_draft_that_was_prepared_tells_nothing_of_how_long_one_takes() -> None:
    stats = GenerationStats(
        rounds=4,
        draft_lengths=[3, 3, 3, 5],
        prepared=[False, True, True, True],
        draft_us=[60, 1, 2, 4],
        forwards_us=[(4, 100)] * 3 + [(6, 200)],
        outcomes=Counter({(3, 3): 3, (5, 5): 1}),
    )
    assert model_times([stats]).draft_us == {3: 60, 5: 4}
    total_us = 3 * 100 + 60 + 200
    assert ceiling_of([stats]) == pytest.approx((3 * 4 + 6) / total_us * 1e6)


def test_no_draft_takes_longer_than_on_demand() -> None:
    waited = GenerationStats(rounds=1, draft_lengths=[3], prepared=[False], draft_us=[90], forwards_us=[(4, 100)])
    on_demand = GenerationStats(rounds=1, draft_lengths=[3], prepared=[False], draft_us=[60], forwards_us=[(4, 900)])
    assert model_times([waited], [on_demand]).draft_us == {3: 60}


def test_drafts_are_timed_where_nothing_ran_ahead() -> None:
    ahead = GenerationStats(
        rounds=2,
        draft_lengths=[3, 5],
        prepared=[False, True],
        draft_us=[7, 4],
        forwards_us=[(4, 100), (6, 200)],
        outcomes=Counter({(3, 3): 1, (5, 5): 1}),
    )
    on_demand = GenerationStats(
        rounds=3,
        draft_lengths=[3, 3, 2],
        prepared=[False] * 3,
        draft_us=[60, 66, 40],
        forwards_us=[(4, 900), (4, 900), (3, 900)],
    )
    times = model_times([ahead], [on_demand])
    # What was missed was drafted in part; what waited for a guess would be longer than on demand.
    assert times.draft_us == {3: 7, 5: 5 * 20}
    assert times.forward_us == {4: 100, 6: 200}
    total_us = 100 + 7 + 200
    assert ceiling_of([ahead], [on_demand]) == pytest.approx((4 + 6) / total_us * 1e6)
