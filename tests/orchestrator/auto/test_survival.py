"""Counts of surviving draft tokens: by bucket and position, nothing after a rejection."""

import pytest

from orchestrator.auto.survival import (
    BUCKET_EDGES,
    HALF_LIFE,
    NUM_BUCKETS,
    PRIOR_ACCEPTANCE,
    Share,
    Survival,
    bucket_of,
)


@pytest.mark.parametrize(
    ("confidence", "bucket"), [(0.0, 0), (0.199, 0), (0.2, 1), (0.5, 3), (0.95, 6), (1.0, 6), (None, 6)]
)
def test_buckets(confidence: float | None, bucket: int) -> None:
    assert bucket_of(confidence) == bucket


def test_there_is_an_expectation_for_every_bucket_and_some_hope() -> None:
    assert len(PRIOR_ACCEPTANCE) == NUM_BUCKETS == len(BUCKET_EDGES) + 1
    for bucket, expected in enumerate(PRIOR_ACCEPTANCE):
        assert expected < Survival().acceptance(bucket, 1)[0] < expected + 0.1


def test_positions_are_counted_up_to_the_rejection_and_no_further() -> None:
    survival = Survival()
    for _ in range(1000):
        survival.observe(3, judged=3, accepted=2)
    first, second, third, fourth = survival.acceptance(3, 4)
    assert first > 0.97
    # A position is drawn to the others, and so is the one that nobody saw.
    assert second > 0.75
    assert third < 0.25
    assert fourth == third


def test_the_expected_tokens_are_the_targets_own_and_the_survivors() -> None:
    survival = Survival()
    for index in range(600):
        survival.observe(2, judged=2 if index % 2 else 1, accepted=1 if index % 2 else 0)
    none, one, two = survival.expected_tokens(2, 2)
    assert none == 1.0
    assert one == pytest.approx(1.5, abs=0.03)
    assert two == pytest.approx(1.5, abs=0.06)


def test_a_bucket_with_nothing_seen_learns_from_the_others() -> None:
    survival = Survival()
    for _ in range(400):
        survival.observe(6, judged=2, accepted=1)
    first, second = survival.acceptance(0, 2)
    # What all first tokens do better than expected it is expected to do too.
    better = PRIOR_ACCEPTANCE[0] / PRIOR_ACCEPTANCE[6]
    assert better - 0.02 < first < better + 0.1
    assert second < 0.1


def test_where_confidence_tells_nothing_no_more_is_expected_of_sure_places() -> None:
    survival = Survival()
    for index in range(800):
        survival.observe((1, 2, 3, 4)[index % 4], judged=1, accepted=index // 4 % 2)
    # Neither was seen, and by the prior they are 0.3 apart.
    unsure, sure = (survival.acceptance(bucket, 1)[0] for bucket in (0, 6))
    assert 0.4 < unsure <= sure + 0.1 < 0.75


def test_later_tokens_of_a_bucket_are_counted_together() -> None:
    survival = Survival()
    for index in range(600):
        survival.observe(1, judged=4 if index % 2 else 2, accepted=3 if index % 2 else 1)
        survival.observe(5, judged=4, accepted=4)
    unsure, sure = survival.acceptance(1, 4), survival.acceptance(5, 4)
    assert sure[1] > 0.9
    # Two of four later tokens stood there.
    assert unsure[1] == pytest.approx(0.5, abs=0.12)
    assert max(unsure[2:]) < 0.8


def test_the_less_was_seen_the_more_is_hoped_for() -> None:
    hopes = []
    share = Share()
    for count in range(1, 1001):
        share.add(count % 2 == 0)
        if count in (10, 100, 1000):
            hopes.append(share.hoped(0.5) - share.given(0.5))
    assert 0.1 > hopes[0] > 2 * hopes[1] > 4 * hopes[2] > 0
    assert share.hoped(0.5) < 0.53


def test_luck_after_a_bad_start_is_not_the_end() -> None:
    bad = Survival()
    for _ in range(8):
        bad.observe(3, judged=2, accepted=1)
    assert bad.acceptance(3, 2)[1] > 0.4


def test_what_was_seen_is_forgotten_by_halves() -> None:
    share = Share()
    for _ in range(20 * HALF_LIFE):
        share.add(True)
    for _ in range(HALF_LIFE):
        share.add(False)
    assert share.true / share.seen == pytest.approx(0.5, abs=0.01)
