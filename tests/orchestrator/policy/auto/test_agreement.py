"""How often drafts agree, by confidence."""

import pytest

from orchestrator.policy.auto.agreement import (
    BUCKET_EDGES,
    HALF_LIFE,
    NUM_BUCKETS,
    PRIOR_AGREEMENT,
    Agreement,
    Share,
    bucket_of,
)


@pytest.mark.parametrize(
    ("confidence", "bucket"), [(0.0, 0), (0.199, 0), (0.2, 1), (0.5, 3), (0.95, 6), (1.0, 6), (None, 6)]
)
def test_buckets(confidence: float | None, bucket: int) -> None:
    assert bucket_of(confidence) == bucket


def test_there_is_an_expectation_for_every_bucket() -> None:
    assert len(PRIOR_AGREEMENT) == NUM_BUCKETS == len(BUCKET_EDGES) + 1
    assert Agreement().expected() == pytest.approx(PRIOR_AGREEMENT)


def test_a_bucket_with_nothing_seen_learns_from_the_others() -> None:
    agreement = Agreement()
    for _ in range(400):
        agreement.add(6, True)
    # What others do better than expected it is expected to do too.
    before = Agreement().expected()[0]
    assert before + 0.04 < agreement.expected()[0] < 1.0


def test_where_confidence_tells_nothing_no_more_is_expected_of_sure_places() -> None:
    agreement = Agreement()
    for index in range(800):
        agreement.add((1, 2, 3, 4)[index % 4], index // 4 % 2 == 0)
    # Neither was seen, and by the prior they are 0.3 apart.
    expected = agreement.expected()
    assert 0.4 < expected[0] <= expected[6] + 0.1 < 0.75


def test_what_was_seen_is_forgotten_by_halves() -> None:
    share = Share()
    for _ in range(20 * HALF_LIFE):
        share.add(True)
    for _ in range(HALF_LIFE):
        share.add(False)
    assert share.true / share.seen == pytest.approx(0.5, abs=0.01)
