"""An announced proposal is taken where it is the whole answer, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decode.lookahead import Announced
from specgate.errors import InvalidArgument
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal

LAST = (10, 11, 12)
"""What was proposed at position 5, with gamma 3."""


def heard(*proposals: tuple[int, int, tuple[int, ...]], first: tuple[DraftRequest, ...] = ()) -> Announced:
    """What is known once the ``first`` requests were answered, and these proposals announced."""
    announced = Announced()
    for request in first or (DraftRequest(1, 5, (), 3),):
        announced.ask(request)
    announced.answered(LAST)
    if proposals:
        announced.on_announcement(Announcement(5, tuple(AnnouncedProposal(*one) for one in proposals)))
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
        (asked(10, 11, 12, 9), (7, 8, 9)),
        # A shorter one is cut, a longer one is asked for.
        (asked(7, gamma=2), (1, 2)),
        (asked(7, gamma=4), None),
        (asked(7, gamma=0), None),
        # It came to its end: it is as long as any.
        (asked(10, 6, gamma=6), (4, 5)),
        # Other outcomes.
        (asked(8), None),
        (asked(10, 7), None),
        (asked(11, 11, 8), None),
        (asked(10, 11, 8, 9), None),
        (asked(), None),
        # What the session has left behind, and another threshold.
        (asked(7, position=6), None),
        (asked(7, stop_below=0.5), None),
    ],
)
def test_it_is_taken_where_it_is_the_whole_answer(request_: DraftRequest, expected: tuple[int, ...] | None) -> None:
    announced = heard((0, 7, (1, 2, 3)), (1, 6, (4, 5)), (2, 8, (4, 5, 6)), (3, 9, (7, 8, 9)))
    assert announced.answer(request_) == (None if expected is None else ready(*expected))
    announced.ask(asked(8))
    assert announced.answer(request_) is None


@pytest.mark.parametrize(
    ("first", "drafted", "is_whole"),
    [
        ([DraftRequest(1, 5, (), 2)], (1, 2), False),
        ([DraftRequest(1, 5, (), 3, prepare=6)], (1, 2, 3, 4), True),
        # A request that says no length has its gamma again; one for no tokens has that of the one before.
        ([DraftRequest(1, 4, (), 5, prepare=8), DraftRequest(2, 4, (9,), 0)], (1, 2, 3, 4, 5), False),
    ],
)
def test_whether_it_came_to_its_end_is_told_by_the_last_request_for_tokens(
    first: list[DraftRequest], drafted: tuple[int, ...], is_whole: bool
) -> None:
    announced = heard((0, 7, drafted), first=tuple(first))
    assert announced.answer(asked(7, gamma=8)) == (ready(*drafted) if is_whole else None)


def test_more_than_was_proposed_cannot_be_accepted() -> None:
    with pytest.raises(InvalidArgument, match="4 of 3"):
        heard((4, 7, (1,))).answer(asked(7))


NEAR = Announcement(5, (AnnouncedProposal(3, 9, (1, 2, 3)), AnnouncedProposal(0, 7, (4, 5, 6))), number=1)
FAR = Announcement(9, (AnnouncedProposal(3, 8, (20, 21, 22)), AnnouncedProposal(1, 8, (23, 24, 25))), True, number=2)
FIRST = (*LAST, 9)
BEHIND = DraftRequest(3, 9, (1, 8), 3)
BEHIND_FAR = ready(23, 24, 25)


def further(*announcements: Announcement) -> Announced:
    """What was heard before the next round is asked for."""
    announced = heard()
    for one in announcements:
        announced.on_announcement(one)
    return announced


@pytest.mark.parametrize(
    ("request_", "is_foreseen"),
    [
        (asked(*FIRST), True),
        # How long the next ones may be says nothing of those that were made.
        (asked(*FIRST, prepare=4), True),
        (asked(*FIRST, gamma=2), False),
        (asked(*FIRST, gamma=4), False),
        (asked(*FIRST, stop_below=0.5), False),
        (asked(7), False),
        (asked(*LAST, 8), False),
        (asked(10, 9), False),
    ],
)
def test_what_is_further_ahead_is_taken_once_it_comes_true(request_: DraftRequest, is_foreseen: bool) -> None:
    announced = further(NEAR)
    assert not announced.on_announcement(FAR)
    assert announced.ask(request_) == (FAR if is_foreseen else None)
    assert announced.was_expected == is_foreseen
    # Nor does what is on its way still say anything behind another outcome.
    assert is_foreseen or not announced.on_announcement(FAR)
    assert announced.answer(BEHIND) == (BEHIND_FAR if is_foreseen else None)
    assert announced.answer(replace(BEHIND, gamma=4)) is None
    announced.ask(BEHIND)
    assert not announced.was_expected


@pytest.mark.parametrize(
    ("token_ids", "answered", "is_taken"),
    [(FIRST, None, True), (FIRST, (1, 2, 3), True), (FIRST, (1, 2), False), ((7,), None, False)],
    ids=["foreseen", "overtaken by the same", "overtaken by another answer", "something else"],
)
def test_what_it_stands_behind_may_cross_the_request(
    token_ids: tuple[int, ...], answered: tuple[int, ...] | None, is_taken: bool
) -> None:
    announced = further()
    assert announced.ask(asked(*token_ids)) is None
    assert announced.answer(BEHIND) is None
    if answered is not None:
        announced.answered(answered)
    assert not announced.on_announcement(NEAR)
    assert announced.on_announcement(FAR) == is_taken
    assert announced.answer(BEHIND) == (BEHIND_FAR if is_taken else None)
    if answered is not None or is_taken:
        assert announced.proposed == (answered or (1, 2, 3))


@pytest.mark.parametrize(("answered", "expected"), [((1, 2, 3), BEHIND_FAR), ((1, 2, 4), None)])
def test_an_answer_that_is_not_what_was_announced_ends_what_stands_behind_it(
    answered: tuple[int, ...], expected: Proposal | None
) -> None:
    announced = further(NEAR, FAR)
    announced.ask(asked(*FIRST))
    announced.answered(answered)
    assert announced.answer(BEHIND) == expected


def test_an_answer_that_is_still_on_its_way_says_nothing_of_what_stands_behind_it() -> None:
    announced = further()
    announced.ask(asked(*FIRST))
    announced.on_announcement(Announcement(9, FAR.proposals, number=2))
    assert announced.answer(BEHIND) is None
    announced.answered((1, 2, 3))
    assert announced.answer(BEHIND) == BEHIND_FAR


@pytest.mark.parametrize("before", [(), (Announcement(5, NEAR.proposals[1:]),), (Announcement(5, ()),)], ids=len)
def test_what_stands_behind_nothing_is_skipped(before: tuple[Announcement, ...]) -> None:
    announced = further(*before)
    assert not announced.on_announcement(FAR)
    announced.ask(asked(*FIRST))
    assert announced.answer(BEHIND) is None


def test_no_more_is_kept_than_may_be_announced() -> None:
    chain = [Announcement(7 + n, (AnnouncedProposal(0, 8, (1, 2, 3)),), True, number=n) for n in range(2, 7)]
    announced = further(NEAR, *chain)
    assert announced.ask(asked(*FIRST)) == chain[0]
    assert announced.ask(DraftRequest(3, 9, (8,), 3)) is None


def test_what_is_made_anew_and_crosses_a_request_ends_what_was_there() -> None:
    announced = further(NEAR, FAR)
    announced.ask(asked(*FIRST))
    announced.answered((1, 2, 3))
    announced.ask(BEHIND)
    assert not announced.on_announcement(Announcement(9, (AnnouncedProposal(3, 7, (1, 2, 3)),), number=3))
    assert not announced.on_announcement(Announcement(13, (AnnouncedProposal(2, 7, (1, 2, 3)),), True, 4))
    assert not announced.was_expected


@pytest.mark.parametrize("number", [1, 3])
def test_one_that_was_lost_leaves_what_stands_behind_it_without_a_place(number: int) -> None:
    assert not further(NEAR).on_announcement(FAR._replace(number=number))
    announced = further(NEAR)
    assert announced.ask(asked(*FIRST)) is None
    assert not announced.on_announcement(FAR._replace(number=number))
    # The one that belongs there may come when its round was asked for.
    assert announced.on_announcement(FAR)
    assert announced.answer(BEHIND) == BEHIND_FAR
