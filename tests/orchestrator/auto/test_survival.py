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


def test_there_is_an_expectation_for_every_bucket() -> None:
    assert len(PRIOR_ACCEPTANCE) == NUM_BUCKETS == len(BUCKET_EDGES) + 1
    assert [Survival().acceptance(bucket, 1)[0] for bucket in range(NUM_BUCKETS)] == list(PRIOR_ACCEPTANCE)


def test_positions_are_counted_up_to_the_rejection_and_no_further() -> None:
    survival = Survival()
    for _ in range(400):
        survival.observe(3, judged=3, accepted=2)
    first, second, third, fourth = survival.acceptance(3, 4)
    assert first > 0.97
    assert second > 0.97
    assert third < 0.03
    # Nobody saw the fourth: it is expected to be as the third.
    assert fourth == third


def test_the_expected_tokens_are_the_targets_own_and_the_survivors() -> None:
    survival = Survival()
    for index in range(600):
        survival.observe(2, judged=2 if index % 2 else 1, accepted=1 if index % 2 else 0)
    none, one, two = survival.expected_tokens(2, 2)
    assert none == 1.0
    assert one == pytest.approx(1.5, abs=0.02)
    assert two == pytest.approx(1.5, abs=0.03)


def test_a_bucket_with_nothing_seen_learns_of_later_positions_from_the_others() -> None:
    survival = Survival()
    for _ in range(400):
        survival.observe(6, judged=2, accepted=1)
    first, second = survival.acceptance(0, 2)
    # What all first tokens do better than expected it is expected to do too.
    assert PRIOR_ACCEPTANCE[0] < first == pytest.approx(PRIOR_ACCEPTANCE[0] / PRIOR_ACCEPTANCE[6], abs=0.01)
    assert second < 0.05


def test_what_was_seen_is_forgotten_by_halves() -> None:
    share = Share()
    for _ in range(20 * HALF_LIFE):
        share.add(True)
    for _ in range(HALF_LIFE):
        share.add(False)
    assert share.true / share.seen == pytest.approx(0.5, abs=0.01)
