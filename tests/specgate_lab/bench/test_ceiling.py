"""The ceiling of a pair: its models' work and nothing else."""

from collections import Counter

import pytest

from specgate_lab.bench.ceiling import ModelTimes, ceiling_of, ceiling_tokens_per_s, model_times
from specgate_lab.measured_stats import MeasuredStats

TIMES = ModelTimes(
    draft_us={3: 3000.0, 5: 5000.0, 9: 20_000.0}, forward_us={1: 7000.0, 4: 8000.0, 6: 9000.0, 10: 8000.0}
)


@pytest.mark.parametrize(
    ("outcomes", "solo_tokens", "hit_rates", "tokens", "ms"),
    [
        pytest.param({(3, 3): 2, (3, 0): 1}, 0, {}, 9, 33, id="a round is a draft and a forward"),
        pytest.param({(3, 2): 1, (5, 5): 1}, 2, {}, 11, 11 + 14 + 14, id="each width and solo token has its own time"),
        pytest.param({}, 7, {}, 1, 7, id="solo tokens only"),
        pytest.param({(3, 3): 10}, 0, {3: 0.5}, 4, 9.5, id="half of the drafts are hidden"),
        pytest.param({(3, 3): 10}, 0, {3: 1.0}, 4, 8, id="all drafts are hidden"),
        pytest.param({(9, 3): 1}, 0, {9: 1.0}, 4, 20, id="a draft hides no longer than the forward lasts"),
    ],
)
def test_the_ceiling_is_all_tokens_over_the_models_times(
    outcomes: dict[tuple[int, int], int], solo_tokens: int, hit_rates: dict[int, float], tokens: int, ms: float
) -> None:
    assert ceiling_tokens_per_s(outcomes, solo_tokens, TIMES, hit_rates) == pytest.approx(tokens / ms * 1e3)


def test_nothing_measured_has_no_ceiling() -> None:
    assert ceiling_tokens_per_s({}, 0, TIMES) is ceiling_of([]) is None


def rounds(*drafts: tuple[int, bool, int], forwards: list[tuple[int, int]], **more) -> MeasuredStats:
    """Return rounds of these drafts: length, whether it was prepared, and microseconds."""
    lengths, prepared, draft_us = (list(column) for column in zip(*drafts, strict=True))
    return MeasuredStats(
        rounds=len(drafts),
        draft_lengths=lengths,
        prepared=prepared,
        draft_us=draft_us,
        forwards_us=forwards,
        **more,
    )


def test_times_are_medians_by_width_of_what_was_not_prepared_over_all_requests() -> None:
    one = rounds(
        *((3, False, 10), (3, False, 30), (3, True, 1), (5, True, 4)),
        forwards=[(4, 100), (1, 70), (4, 200), (4, 200), (6, 300)],
        solo_tokens=1,
        outcomes=Counter({(3, 1): 2, (3, 3): 1, (5, 5): 1}),
    )
    other = rounds((3, False, 90), forwards=[(1, 80), (4, 900), (1, 75)], solo_tokens=2, outcomes={(3, 3): 1})
    assert model_times([one, other]) == ModelTimes({3: 30, 5: 4}, {1: 75, 4: 200, 6: 300})
    # One draft of four was prepared, and hides; so does the only one of five tokens.
    total_us = 4 * 200 + 3 * 30 + 300 + 3 * 75
    assert ceiling_of([one, other]) == pytest.approx((2 * 2 + 2 * 4 + 6 + 3) / total_us * 1e6)


def test_drafts_are_timed_where_nothing_ran_ahead() -> None:
    drafts = ((3, False, 60), (3, False, 66), (2, False, 40))
    on_demand = [rounds(*drafts, forwards=[(4, 900), (4, 900), (3, 900)])]
    outcomes = Counter({(3, 3): 1, (5, 5): 1})
    ahead = [rounds((3, False, 7), (5, True, 4), forwards=[(4, 100), (6, 200)], outcomes=outcomes)]
    # What was missed was drafted in part; a length that on-demand rounds have not is taken in proportion.
    assert model_times(ahead, on_demand) == ModelTimes({3: 7, 5: 5 * 20}, {4: 100, 6: 200})
    assert ceiling_of(ahead, on_demand) == pytest.approx((4 + 6) / (100 + 7 + 200) * 1e6)
    # What waited for the forward of a guess takes no longer than on demand.
    waited = [rounds((3, False, 90), forwards=[(4, 100)])]
    assert model_times(waited, on_demand).draft_us == {3: 63}
