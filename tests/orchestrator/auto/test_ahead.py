"""What is expected to lie ready, by what has."""

import pytest

from orchestrator.auto.ahead import FIRST_CHANCE, FIRST_LENGTH, MIN_SEEN, Readiness
from orchestrator.auto.observation import Behind


def seen(*rounds: tuple[int, bool, int], times: int = 60) -> Readiness:
    """Return what is known after rounds of (gamma, whole, length)."""
    readiness = Readiness()
    for _ in range(times):
        for gamma, whole, length in rounds:
            readiness.observe(Behind(gamma, whole), length)
    return readiness


def test_at_first_it_is_worth_a_look() -> None:
    ahead = Readiness().ahead(4, 1.0)
    assert ahead.foreseen == ahead.others == [FIRST_CHANCE] * 5
    assert ahead.lengths == [FIRST_LENGTH] * 5


def test_what_follows_a_rejection_is_harder_to_foresee() -> None:
    ahead = seen((3, True, 3), (3, False, 0)).ahead(3, 1.0)
    assert ahead.foreseen[3] > 0.9
    assert ahead.others[3] < 0.1


@pytest.mark.parametrize(("agreement", "foreseen"), [(1.0, 0.6), (0.8, 0.7), (0.1, 1.0)])
def test_what_the_draft_agrees_on_is_foreseen(agreement: float, foreseen: float) -> None:
    # Three in five behind drafts that stood, one in five behind others.
    rounds = [(3, True, 3 * (index < 3)) for index in range(5)] + [(3, False, 3 * (index < 1)) for index in range(5)]
    ahead = seen(*rounds).ahead(3, agreement)
    assert ahead.foreseen[3] == pytest.approx(foreseen, abs=0.06)
    assert ahead.others[3] == pytest.approx(0.2, abs=0.05)


def test_a_longer_draft_gives_more_time_to_prepare() -> None:
    lengths = seen((2, True, 2), (8, True, 6), times=200).ahead(8, 1.0).lengths
    assert lengths[2] < lengths[5] < lengths[8]
    assert lengths[2] == pytest.approx(2, abs=0.3)
    assert lengths[8] == pytest.approx(6, abs=0.3)


def test_one_gamma_tells_little_of_another() -> None:
    ahead = seen((1, True, 0), (2, True, 3), times=8).ahead(8, 1.0)
    assert 0.2 < ahead.foreseen[8] < 0.9


def test_it_forgets() -> None:
    readiness = seen((3, True, 0))
    for _ in range(600):
        readiness.observe(Behind(3, True), 4)
    assert readiness.ahead(4, 1.0).foreseen[3] > 0.9


def test_what_was_all_there_might_have_been_more() -> None:
    readiness, least = Readiness(), seen((3, True, 3))
    for _ in range(60):
        readiness.observe(Behind(3, True), 3, 3)
    assert readiness.ahead(8, 1.0).lengths[3] == pytest.approx(least.ahead(8, 1.0).lengths[3] + 1, abs=0.1)


def test_it_is_known_after_a_few_rounds() -> None:
    assert not seen((3, True, 0), times=MIN_SEEN - 1).is_known
    assert seen((3, True, 0), times=2 * MIN_SEEN).is_known
