"""What is expected to have been begun, by what was."""

import pytest

from orchestrator.policy.auto.ahead import FIRST_CHANCE, PreparedDrafts
from orchestrator.policy.auto.observation import PreviousRound


def seen(*rounds: tuple[int, bool, bool], times: int = 60) -> PreparedDrafts:
    """Return what is known after rounds of (gamma, whole, is_there)."""
    readiness = PreparedDrafts()
    for _ in range(times):
        for gamma, whole, is_there in rounds:
            readiness.observe(PreviousRound(gamma, whole), is_there=is_there)
    return readiness


def test_at_first_it_is_counted_on_by_half() -> None:
    ahead = PreparedDrafts().ahead(4, 1.0)
    assert ahead.foreseen == ahead.others == [FIRST_CHANCE] * 5


def test_what_follows_a_rejection_is_harder_to_foresee() -> None:
    ahead = seen((3, True, True), (3, False, False)).ahead(3, 1.0)
    assert ahead.foreseen[3] > 0.9
    assert ahead.others[3] < 0.1


@pytest.mark.parametrize(("agreement", "foreseen"), [(1.0, 0.6), (0.8, 0.7), (0.1, 1.0)])
def test_what_the_draft_agrees_on_is_foreseen(agreement: float, foreseen: float) -> None:
    # Three in five behind drafts that stood, one in five behind others.
    rounds = [(3, True, index < 3) for index in range(5)] + [(3, False, index < 1) for index in range(5)]
    ahead = seen(*rounds).ahead(3, agreement)
    assert ahead.foreseen[3] == pytest.approx(foreseen, abs=0.06)
    assert ahead.others[3] == pytest.approx(0.2, abs=0.05)


def test_one_gamma_tells_little_of_another() -> None:
    ahead = seen((1, True, False), (2, True, True), times=8).ahead(8, 1.0)
    assert 0.2 < ahead.foreseen[8] < 0.9


def test_it_forgets() -> None:
    readiness = seen((3, True, False))
    for _ in range(600):
        readiness.observe(PreviousRound(3, True), is_there=True)
    assert readiness.ahead(4, 1.0).foreseen[3] > 0.9
