"""Groups of sessions, from how long they are away and how many share a forward."""

import math

import pytest

from orchestrator.policy.auto.batch_overlap import BatchOverlap, groups_of, share_running

SESSIONS, FORWARD_US = 8, 9000


def met(*batches: int, share: float, meeting: BatchOverlap | None = None) -> BatchOverlap:
    """Return what is learned where forwards of so many sessions follow each other."""
    meeting = meeting or BatchOverlap(half_life=60)
    for batch in batches * 200:
        for _ in range(batch):
            meeting.add(FORWARD_US, FORWARD_US / share, batch, SESSIONS, weight=1 / SESSIONS)
    return meeting


@pytest.mark.parametrize("groups", [1, 2.5, 8])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_one_way_and_back(groups: float, share: float) -> None:
    assert groups_of(share, share_running(share, groups)) == pytest.approx(groups)


def test_those_who_always_move_together_are_one_group() -> None:
    assert met(8, share=0.5).groups(SESSIONS) == pytest.approx(1)


@pytest.mark.parametrize("batches", [(2,), (2, 6), (1, 7), (4, 4)])
def test_each_forward_counts_once_whatever_the_number_of_its_verdicts(batches: tuple[int, ...]) -> None:
    share = 0.4
    # Forwards run for so long as it takes to serve everybody for his share.
    running = SESSIONS * share * len(batches) / sum(batches)
    expected = min(groups_of(share, running), SESSIONS)
    assert met(*batches, share=share).groups(SESSIONS) == pytest.approx(expected, rel=0.05)


def test_before_anything_is_known_nobody_moves_together() -> None:
    assert BatchOverlap(half_life=60).groups(SESSIONS) == SESSIONS


@pytest.mark.parametrize("share", [0.99, 1.0])
def test_where_nobody_leaves_the_verifier_all_count_as_apart(share: float) -> None:
    assert met(8, share=0.8).groups(SESSIONS) == pytest.approx(1)
    assert met(8, share=share, meeting=met(8, share=0.5)).groups(SESSIONS) == SESSIONS


@pytest.mark.parametrize("sessions", [1, 2, 8])
def test_no_fewer_than_one_and_no_more_than_there_are(sessions: int) -> None:
    assert met(8, share=0.2).groups(sessions) == 1
    assert met(1, share=0.3).groups(sessions) == sessions


def test_a_forward_that_always_runs_says_that_all_are_apart() -> None:
    assert groups_of(0.5, 1.0) == math.inf
