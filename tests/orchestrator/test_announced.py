"""An announced proposal is taken where it is the whole answer, and nowhere else."""

import pytest

from orchestrator.announced import Announced
from specgate.errors import InvalidArgument
from specgate.types import AnnouncedProposal, Announcement, DraftRequest, Proposal

LAST = (10, 11, 12)
"""What was proposed at position 5, with gamma 3."""


def heard(*proposals: tuple[int, int, tuple[int, ...]], position: int = 5, gamma: int = 3) -> Announced:
    announced = Announced()
    announced.ask(DraftRequest(1, position, (), gamma))
    announced.hear(Announcement(position, tuple(AnnouncedProposal(*one) for one in proposals)))
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
    assert announced.answer(asked(*token_ids), LAST) == ready(*draft_token_ids)


@pytest.mark.parametrize("token_ids", [(8,), (10, 7), (11, 11, 8), (10, 11, 8, 9), ()])
def test_an_outcome_that_was_not(token_ids: tuple[int, ...]) -> None:
    assert heard((0, 7, (1, 2, 3)), (2, 8, (4, 5, 6))).answer(asked(*token_ids), LAST) is None


def test_what_the_session_has_left_behind_is_not_taken() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, position=6), LAST) is None


def test_a_shorter_proposal_is_cut_and_a_longer_one_is_asked_for() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, gamma=2), LAST) == ready(1, 2)
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, gamma=4), LAST) is None


def test_a_draft_that_came_to_its_end_is_as_long_as_any() -> None:
    assert heard((0, 7, (1, 2))).answer(asked(7, gamma=6), LAST) == ready(1, 2)


def test_the_terms_are_those_of_the_last_request_for_tokens() -> None:
    announced = heard((0, 7, (1, 2)), gamma=2)
    assert announced.answer(asked(7, gamma=0), LAST) is None
    announced.hear(Announcement(6, (AnnouncedProposal(0, 8, (1, 2)),)))
    assert announced.answer(asked(8, gamma=3, position=6), ()) is None


def test_another_threshold_is_another_draft() -> None:
    assert heard((0, 7, (1, 2, 3))).answer(asked(7, stop_below=0.5), LAST) is None


def test_more_than_was_proposed_cannot_be_accepted() -> None:
    with pytest.raises(InvalidArgument, match="4 of 3"):
        heard((4, 7, (1,))).answer(asked(7), LAST)


def test_as_long_as_was_said_is_complete() -> None:
    announced = Announced()
    announced.ask(DraftRequest(1, 5, (), 3, prepare=6))
    announced.hear(Announcement(5, (AnnouncedProposal(0, 7, (1, 2, 3, 4)),)))
    assert announced.answer(asked(7, gamma=8), LAST) == ready(1, 2, 3, 4)


def test_asking_ends_what_was_announced() -> None:
    announced = heard((0, 7, (1, 2, 3)))
    announced.ask(asked(7))
    assert announced.answer(asked(7), LAST) is None


def test_a_request_that_says_no_length_has_its_gamma_again() -> None:
    announced = Announced()
    announced.ask(DraftRequest(1, 4, (), 5, prepare=8))
    announced.ask(DraftRequest(2, 4, (9,), 0))
    announced.hear(Announcement(5, (AnnouncedProposal(0, 7, (1, 2, 3, 4, 5)),)))
    assert announced.answer(asked(7, gamma=8), LAST) is None
