"""An announced proposal is taken where it is the whole answer, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decode.lookahead import MAX_KEPT, Announcer
from specgate.rpc import convert_ahead
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal, TokenIds

FIRST = DraftRequest(1, 5, (), 3)
"""What it was answered with does not matter: what is announced says what is to be committed."""


def announcement(*proposals: tuple[TokenIds, TokenIds], position: int = 5, gamma: int = 3) -> Announcement:
    return Announcement(position, tuple(AnnouncedProposal(*one) for one in proposals), gamma)


def heard(*announcements: Announcement) -> Announcer:
    """What is known once the first request was sent, and these came."""
    announced = Announcer()
    announced.commit(FIRST)
    for one in announcements:
        announced.add(one)
    return announced


def asked(*token_ids: int, gamma: int = 3, **changes: Any) -> DraftRequest:
    return replace(DraftRequest(2, 5, token_ids, gamma), **changes)


def ready(*draft_token_ids: int) -> Proposal:
    return Proposal(draft_token_ids, from_run_ahead=True, num_prepared=len(draft_token_ids))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(7), (1, 2, 3)),
        (asked(10, 11, 8), (4, 5, 6)),
        # A shorter one is cut, a longer one is asked for.
        (asked(7, gamma=2), (1, 2)),
        (asked(7, gamma=4), None),
        (asked(7, gamma=0), None),
        # It came to its end: it is as long as any.
        (asked(10, 6, gamma=6), (4, 5)),
        # Other tokens.
        (asked(8), None),
        (asked(10), None),
        (asked(10, 11, 8, 9), None),
        (asked(), None),
        # What the session has left behind, and another threshold.
        (asked(7, position=6), None),
        (asked(7, stop_below=0.5), None),
    ],
)
def test_it_is_taken_where_it_is_the_whole_answer(request_: DraftRequest, expected: TokenIds | None) -> None:
    announced = heard(announcement(((7,), (1, 2, 3)), ((10, 6), (4, 5)), ((10, 11, 8), (4, 5, 6))))
    assert announced.announced(request_) == (None if expected is None else ready(*expected))
    announced.commit(asked(8))
    assert announced.announced(request_) is None


NEAR = announcement(((10, 9), (1, 2, 3)), ((7,), (4, 5, 6)))
FAR = announcement(((10, 9, 1, 8), (20, 21, 22)), ((10, 9, 1, 2, 6), (23, 24, 25)))
BEHIND = DraftRequest(3, 7, (1, 8), 3)
BEHIND_FAR = ready(20, 21, 22)


def test_what_is_expected_is_what_may_still_be_committed() -> None:
    announced = heard(NEAR, FAR)
    assert announced.expected(5) == ((10, 9), (7,), (10, 9, 1, 8), (10, 9, 1, 2, 6))
    assert announced.expected(6) == ()
    announced.commit(asked(10, 9))
    assert announced.expected(7) == ((1, 8), (1, 2, 6))
    announced.commit(BEHIND)
    assert announced.expected(9) == ()


@pytest.mark.parametrize(
    "happened",
    [
        (NEAR, FAR, (10, 9)),
        (NEAR, (10, 9), FAR),
        ((10, 9), NEAR, FAR),
        # Lost, or overtaken.
        (FAR, (10, 9)),
        ((10, 9), FAR, NEAR),
        # In two rounds, or in a round that was begun again.
        (NEAR, FAR, (10,), (9,)),
        (NEAR, (10,), FAR, (9,)),
        (NEAR, FAR, (10, 9), ()),
    ],
)
def test_whatever_crosses_and_however_rounds_are_cut_the_tokens_decide(
    happened: tuple[Announcement | TokenIds, ...],
) -> None:
    announced, position = heard(), 5
    for one in happened:
        if isinstance(one, Announcement):
            announced.add(one)
        else:
            announced.commit(asked(*one, position=position))
            position += len(one)
    assert announced.announced(BEHIND) == BEHIND_FAR
    assert announced.announced(replace(BEHIND, token_ids=(1, 7))) is None


@pytest.mark.parametrize("position", [4, 6, 8])
def test_what_stands_on_tokens_that_are_not_known_is_skipped(position: int) -> None:
    announced = heard()
    announced.commit(asked(10, 9))
    announced.add(FAR._replace(position=position))
    assert announced.expected(7) == ()


def test_what_is_older_than_the_last_request_is_skipped() -> None:
    announced = heard()
    announced.commit(asked(10, 9))
    announced.commit(BEHIND)
    announced.add(announcement(((1, 8, 5), (7, 7, 7)), ((10, 9, 1, 8, 5), (7, 7, 7)), position=5))
    assert announced.expected(9) == ()


def test_no_more_is_kept_than_two_rounds_may_bring() -> None:
    announced = heard(*(announcement(*(((7, n, i), (1,)) for i in range(64))) for n in range(9)))
    kept = announced.expected(5)
    assert len(kept) == MAX_KEPT
    assert list(kept)[-1] == (7, 8, 63)


def test_a_threshold_that_a_float32_does_not_hold_is_the_same_behind_the_wire() -> None:
    sent = announcement(((7,), (1, 2, 3)))._replace(stop_below=0.4)
    announced = heard(convert_ahead.announcement_from_pb(convert_ahead.announcement_to_pb(sent).announced))
    assert announced.announced(asked(7, stop_below=0.4)) == ready(1, 2, 3)
    assert announced.announced(asked(7, stop_below=0.41)) is None


def test_the_drafts_own_probabilities_are_cut_with_it() -> None:
    sure = AnnouncedProposal((7,), (1, 2, 3), draft_confidences=(0.9, 0.8, 0.7))
    announced = heard(Announcement(5, (sure,), 3, 0.4))
    found = announced.announced(asked(7, gamma=2, stop_below=0.4))
    assert found == replace(ready(1, 2), draft_confidences=(0.9, 0.8))


def test_the_last_one_counts() -> None:
    assert heard(NEAR, announcement(((7,), (8, 8, 8)))).announced(asked(7)) == ready(8, 8, 8)
