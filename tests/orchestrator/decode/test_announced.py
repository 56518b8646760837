"""An announced proposal is taken where it is the whole answer, and nowhere else."""

import pytest

from orchestrator.decode.lookahead import MOST_A_ROUND, Announced
from specgate.errors import InvalidArgument
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal

LAST = (10, 11, 12)
"""What was proposed at position 5, with gamma 3."""


def heard(*proposals: tuple[int, int, tuple[int, ...]], position: int = 5, gamma: int = 3) -> Announced:
    announced = Announced()
    announced.ask(DraftRequest(1, position, (), gamma))
    announced.answered(LAST)
    announced.on_announcement(Announcement(position, tuple(AnnouncedProposal(*one) for one in proposals)))
    return announced


def asked(*token_ids: int, gamma: int = 3, position: int = 5, stop_below: float = 0.0) -> DraftRequest:
    return DraftRequest(2, position, token_ids, gamma, stop_below)


def ready(*draft_token_ids: int) -> Proposal:
    return Proposal(draft_token_ids, from_run_ahead=True, num_prepared=len(draft_token_ids))


@pytest.mark.parametrize(
    ("token_ids", "draft_token_ids"), [((7,), (1, 2, 3)), ((10, 11, 8), (4, 5, 6)), ((10, 11, 12, 9), (7, 8, 9))]
)
def test_an_outcome_that_was_foreseen(token_ids: tuple[int, ...], draft_token_ids: tuple[int, ...]) -> None:
    announced = heard((0, 7, (1, 2, 3)), (2, 8, (4, 5, 6)), (3, 9, (7, 8, 9)))
    assert announced.answer(asked(*token_ids)) == ready(*draft_token_ids)


@pytest.mark.parametrize("token_ids", [(8,), (10, 7), (11, 11, 8), (10, 11, 8, 9), ()])
def test_an_outcome_that_was_not(token_ids: tuple[int, ...]) -> None:
    assert heard((0, 7, (1, 2, 3)), (2, 8, (4, 5, 6))).answer(asked(*token_ids)) is None


def test_what_the_session_has_left_behind_is_not_taken() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, position=6)) is None


def test_a_shorter_proposal_is_cut_and_a_longer_one_is_asked_for() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, gamma=2)) == ready(1, 2)
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, gamma=4)) is None


def test_a_draft_that_came_to_its_end_is_as_long_as_any() -> None:
    assert heard((0, 7, (1, 2))).answer(asked(7, gamma=6)) == ready(1, 2)


def test_the_terms_are_those_of_the_last_request_for_tokens() -> None:
    announced = heard((0, 7, (1, 2)), gamma=2)
    assert announced.answer(asked(7, gamma=0)) is None
    announced.on_announcement(Announcement(6, (AnnouncedProposal(0, 8, (1, 2)),)))
    assert announced.answer(asked(8, gamma=3, position=6)) is None


def test_another_threshold_is_another_draft() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, stop_below=0.5)) is None


def test_more_than_was_proposed_cannot_be_accepted() -> None:
    with pytest.raises(InvalidArgument, match="4 of 3"):
        heard((4, 7, (1,))).answer(asked(7))


def test_as_long_as_was_said_is_complete() -> None:
    announced = Announced()
    announced.ask(DraftRequest(1, 5, (), 3, prepare=6))
    announced.answered(LAST)
    announced.on_announcement(Announcement(5, (AnnouncedProposal(0, 7, (1, 2, 3, 4)),)))
    assert announced.answer(asked(7, gamma=8)) == ready(1, 2, 3, 4)


def test_asking_ends_what_was_announced() -> None:
    announced = heard((0, 7, (1, 2, 3)))
    announced.ask(asked(7))
    assert announced.answer(asked(7)) is None


def test_a_request_that_says_no_length_has_its_gamma_again() -> None:
    announced = Announced()
    announced.ask(DraftRequest(1, 4, (), 5, prepare=8))
    announced.ask(DraftRequest(2, 4, (9,), 0))
    announced.on_announcement(Announcement(5, (AnnouncedProposal(0, 7, (1, 2, 3, 4, 5)),)))
    assert announced.answer(asked(7, gamma=8)) is None


NEAR = Announcement(5, (AnnouncedProposal(3, 9, (1, 2, 3)), AnnouncedProposal(0, 7, (4, 5, 6))), number=1)
FAR = Announcement(9, (AnnouncedProposal(3, 8, (20, 21, 22)), AnnouncedProposal(1, 8, (23, 24, 25))), True, number=2)
FIRST = (*LAST, 9)
BEHIND = DraftRequest(3, 9, (1, 8), 3)


def further(*announcements: Announcement) -> Announced:
    """What was heard before the next round is asked for."""
    announced = heard()
    for one in announcements:
        announced.on_announcement(one)
    return announced


def test_what_is_further_ahead_is_taken_once_it_comes_true() -> None:
    announced = further(NEAR)
    assert not announced.on_announcement(FAR)
    assert announced.answer(asked(*FIRST)) == ready(1, 2, 3)
    assert announced.ask(asked(*FIRST)) == FAR
    assert announced.answer(BEHIND) == ready(23, 24, 25)


@pytest.mark.parametrize("gamma", [2, 4])
def test_of_another_length_it_was_not_foreseen(gamma: int) -> None:
    announced = further(NEAR, FAR)
    assert announced.ask(asked(*FIRST, gamma=gamma)) is None
    assert announced.answer(BEHIND) is None


@pytest.mark.parametrize("token_ids", [(7,), (*LAST, 8), (10, 9)])
def test_behind_another_outcome_it_says_nothing(token_ids: tuple[int, ...]) -> None:
    announced = further(NEAR, FAR)
    assert announced.ask(asked(*token_ids)) is None
    # Nor does what is on its way still.
    assert not announced.on_announcement(FAR)
    assert announced.answer(BEHIND) is None


def test_it_may_come_when_its_round_was_asked_for() -> None:
    announced = further(NEAR)
    assert announced.ask(asked(*FIRST)) is None
    assert announced.on_announcement(FAR)
    assert announced.answer(BEHIND) == ready(23, 24, 25)


def test_what_it_stands_behind_may_cross_the_request() -> None:
    announced = further()
    assert announced.ask(asked(*FIRST)) is None
    assert announced.answer(BEHIND) is None
    assert not announced.on_announcement(NEAR)
    assert announced.on_announcement(FAR)
    assert announced.answer(BEHIND) == ready(23, 24, 25)
    announced.answered((1, 2, 3))
    assert announced.answer(BEHIND) == ready(23, 24, 25)


def test_an_answer_that_overtakes_what_crossed_its_request_is_what_counts() -> None:
    announced = further()
    announced.ask(asked(*FIRST))
    announced.answered((1, 2))
    assert not announced.on_announcement(NEAR)
    assert announced.proposed == (1, 2)
    assert not announced.on_announcement(FAR)


def test_nothing_is_lost_where_the_answer_that_overtakes_is_the_same() -> None:
    announced = further()
    announced.ask(asked(*FIRST))
    announced.answered((1, 2, 3))
    assert not announced.on_announcement(NEAR)
    assert announced.on_announcement(FAR)


def test_what_crossed_the_request_of_something_else_is_forgotten() -> None:
    announced = further()
    announced.ask(asked(7))
    assert not announced.on_announcement(NEAR)
    assert not announced.on_announcement(FAR)


def test_an_answer_that_is_not_what_was_announced_ends_what_stands_behind_it() -> None:
    announced = further(NEAR, FAR)
    announced.ask(asked(*FIRST))
    announced.answered((1, 2, 4))
    assert announced.answer(BEHIND) is None


def test_an_answer_that_is_still_on_its_way_says_nothing_of_what_stands_behind_it() -> None:
    announced = further()
    announced.ask(asked(*FIRST))
    announced.on_announcement(Announcement(9, FAR.proposals, number=2))
    assert announced.answer(BEHIND) is None
    announced.answered((1, 2, 3))
    assert announced.answer(BEHIND) == ready(23, 24, 25)


def test_what_stands_behind_nothing_is_skipped() -> None:
    assert not further().on_announcement(FAR)
    assert not further(Announcement(5, (AnnouncedProposal(2, 9, (1, 2, 3)),))).on_announcement(FAR)
    assert not further(Announcement(5, ())).on_announcement(FAR)


def test_no_more_is_kept_than_may_be_announced() -> None:
    announced, position = further(NEAR), 9
    for number in range(2, 7):
        announced.on_announcement(Announcement(position, (AnnouncedProposal(0, 8, (1, 2, 3)),), True, number))
        position += 1
    assert len(announced._chain) == MOST_A_ROUND


def test_on_other_terms_nothing_was_foreseen() -> None:
    announced = further(NEAR, FAR)
    assert announced.ask(DraftRequest(2, 5, FIRST, 3, stop_below=0.5)) is None


def test_how_long_the_next_ones_may_be_says_nothing_of_those_that_were_made() -> None:
    announced = further(NEAR, FAR)
    assert announced.ask(DraftRequest(2, 5, FIRST, 3, prepare=4)) == FAR
    assert announced.answer(DraftRequest(3, 9, (1, 8), 4)) is None
    assert announced.answer(BEHIND) == ready(23, 24, 25)


def test_it_is_known_whether_a_round_was_foreseen() -> None:
    announced = further(NEAR)
    assert not announced.was_foreseen
    announced.ask(asked(*FIRST))
    assert announced.was_foreseen
    announced.ask(BEHIND)
    assert not announced.was_foreseen


def test_what_is_made_anew_and_crosses_a_request_ends_what_was_there() -> None:
    announced = further(NEAR, FAR)
    announced.ask(asked(*FIRST))
    announced.answered((1, 2, 3))
    announced.ask(BEHIND)
    assert not announced.on_announcement(Announcement(9, (AnnouncedProposal(3, 7, (1, 2, 3)),), number=3))
    assert not announced.on_announcement(Announcement(13, (AnnouncedProposal(2, 7, (1, 2, 3)),), True, 4))
    assert not announced.was_foreseen


@pytest.mark.parametrize("number", [1, 3])
def test_one_that_was_lost_leaves_what_stands_behind_it_without_a_place(number: int) -> None:
    assert not further(NEAR).on_announcement(FAR._replace(number=number))
    announced = further(NEAR)
    announced.ask(asked(*FIRST))
    assert not announced.on_announcement(FAR._replace(number=number))
    assert announced.on_announcement(FAR)
