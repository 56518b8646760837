"""What is expected to lie ready, by what has."""

import pytest

from orchestrator.auto.ahead import FIRST_CHANCE, FIRST_LENGTH, Readiness
from orchestrator.auto.survival import NUM_BUCKETS

VISITS = [1.0] * NUM_BUCKETS


def seen(*rounds: tuple[int, int, bool, int], times: int = 60) -> Readiness:
    """Return what is known after rounds of (bucket, gamma, whole, length)."""
    readiness = Readiness()
    for _ in range(times):
        for bucket, gamma, whole, length in rounds:
            readiness.observe(bucket, gamma, length, whole=whole)
    return readiness


def test_at_first_it_is_worth_a_look() -> None:
    ahead = Readiness().ahead(4, VISITS)
    assert ahead.chances == [FIRST_CHANCE] * NUM_BUCKETS
    assert ahead.after == [(FIRST_CHANCE, FIRST_LENGTH)] * 5


def test_the_chance_is_that_of_the_bucket() -> None:
    chances = seen((0, 3, True, 0), (6, 3, True, 3)).ahead(8, VISITS).chances
    assert chances[0] < 0.1
    assert chances[6] > 0.9
    assert chances[3] == pytest.approx(0.5, abs=0.1)


def test_a_longer_draft_is_harder_to_foresee_and_gives_more_time() -> None:
    readiness = seen((6, 2, True, 2), (6, 2, False, 0), (6, 8, True, 6), (6, 8, False, 0))
    for _ in range(200):
        readiness.survival.observe(6, 2, 1)
    after = readiness.ahead(8, VISITS).after
    # Of γ that nobody tried it is known as well.
    chances = [prospect.chance for prospect in after]
    assert chances[0] > 0.9
    assert chances == sorted(chances, reverse=True)
    assert chances[8] < 0.2
    assert (after[2].length, after[8].length) == (2, 6)
    assert after[2].length <= after[5].length <= after[8].length


def test_how_likely_a_draft_stands_is_that_of_the_buckets_that_are_visited() -> None:
    readiness = seen((6, 2, True, 2), (0, 2, False, 0))
    for _ in range(200):
        readiness.survival.observe(6, 2, 2)
        readiness.survival.observe(0, 1, 0)
    sure, unsure = ([1.0 if index == bucket else 0.0 for index in range(NUM_BUCKETS)] for bucket in (6, 0))
    assert readiness.ahead(2, sure).after[2].chance > readiness.ahead(2, unsure).after[2].chance + 0.5


def test_no_more_is_expected_than_is_asked_for() -> None:
    assert {prospect.length for prospect in seen((6, 3, True, 8)).ahead(4, VISITS).after} <= {1, 2, 3, 4}


def test_it_forgets() -> None:
    readiness = seen((6, 3, True, 0))
    for _ in range(600):
        readiness.observe(6, 3, 4, whole=True)
    assert readiness.ahead(4, VISITS).chances[6] > 0.9
