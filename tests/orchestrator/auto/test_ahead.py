"""What is expected to lie ready, by what has."""

import pytest

from orchestrator.auto.ahead import FIRST_CHANCE, FIRST_LENGTH, Readiness
from orchestrator.auto.survival import NUM_BUCKETS


def seen(*rounds: tuple[int, int, int], times: int = 60) -> Readiness:
    """Return what is known after rounds of (bucket, gamma, length)."""
    readiness = Readiness()
    for _ in range(times):
        for bucket, gamma, length in rounds:
            readiness.observe(bucket, gamma, length)
    return readiness


def test_at_first_it_is_worth_a_look() -> None:
    ahead = Readiness().ahead(4)
    assert ahead.chances == [FIRST_CHANCE] * NUM_BUCKETS
    assert ahead.after == [(FIRST_CHANCE, FIRST_LENGTH)] * 5


def test_the_chance_is_that_of_the_bucket() -> None:
    chances = seen((0, 3, 0), (6, 3, 3)).ahead(8).chances
    assert chances[0] < 0.1
    assert chances[6] > 0.9
    assert chances[3] == pytest.approx(0.5, abs=0.1)


def test_a_longer_draft_is_harder_to_foresee_and_gives_more_time() -> None:
    after = seen((6, 2, 2), (6, 2, 2), (6, 8, 6), (6, 8, 0)).ahead(8).after
    assert after[2].chance > after[8].chance + 0.3
    assert (after[2].length, after[8].length) == (2, 6)
    assert after[2].length <= after[5].length <= after[8].length


def test_no_more_is_expected_than_is_asked_for() -> None:
    assert {prospect.length for prospect in seen((6, 3, 8)).ahead(4).after} <= {1, 2, 3, 4}


def test_it_forgets() -> None:
    readiness = seen((6, 3, 0))
    for _ in range(600):
        readiness.observe(6, 3, 4)
    assert readiness.ahead(4).chances[6] > 0.9
