"""What is told ahead: what goes out comes back the same, and what is out of its limits is refused by name."""

import math
from typing import Any

import pytest

from specgate.rpc import convert_ahead
from specgate.types import MAX_GAMMA, AnnouncedProposal, Announcement, FollowUp, FollowUps
from specgate.v1 import drafter_service_pb2, types_pb2, verifier_service_pb2
from tests.specgate.rpc.wire import over_the_wire, refused

DRAFTS = (AnnouncedProposal(2, 7, (1, 2, 3)), AnnouncedProposal(0, 0, (5,)), AnnouncedProposal(1, 0, (9,) * MAX_GAMMA))
FOLLOW_UPS = FollowUps(4, 9, (FollowUp(2, 7, (1, 2, 3), 0.5), FollowUp(0, 0, (5,))), 0.25, 8)


@pytest.mark.parametrize("further", [False, True])
@pytest.mark.parametrize("proposals", [(), DRAFTS[:1], DRAFTS[:1] * 4, DRAFTS[1:2] * 64, DRAFTS], ids=len)
def test_an_announcement_there_and_back(proposals: tuple[AnnouncedProposal, ...], further: bool) -> None:
    announcement = Announcement(9, proposals, further, 7)
    response = over_the_wire(convert_ahead.announcement_to_pb(announcement))
    assert response.HasField("announced")
    assert convert_ahead.announcement_from_pb(response.announced) == announcement


def test_of_too_many_guesses_the_first_are_announced() -> None:
    many = convert_ahead.announcement_to_pb(Announcement(9, DRAFTS * 40))
    announced = convert_ahead.announcement_from_pb(many.announced).proposals
    assert announced == (DRAFTS * 40)[: convert_ahead.MAX_BRANCHES]


ONE, OTHER = FOLLOW_UPS.proposals


@pytest.mark.parametrize("proposals", [(), (ONE,), (ONE, OTHER), (OTHER, ONE, OTHER), (OTHER,) * 2], ids=len)
def test_follow_ups_there_and_back(proposals: tuple[FollowUp, ...]) -> None:
    follow_ups = FOLLOW_UPS._replace(proposals=proposals)
    assert convert_ahead.follow_ups_from_pb(over_the_wire(convert_ahead.follow_ups_to_pb(follow_ups))) == follow_ups


@pytest.mark.parametrize(("proposals", "told"), [((OTHER,) * 4, []), ((OTHER, ONE, OTHER, OTHER), [0.0, 0.5])])
def test_a_limit_of_nothing_takes_no_room(proposals: tuple[FollowUp, ...], told: list[float]) -> None:
    pb = convert_ahead.follow_ups_to_pb(FOLLOW_UPS._replace(proposals=proposals))
    assert pb.least_confidences == told


def size(*proposals: AnnouncedProposal) -> int:
    return convert_ahead.announcement_to_pb(Announcement(9, proposals)).ByteSize()


def test_a_further_guess_takes_a_byte_besides_its_tokens_and_two_where_lengths_differ() -> None:
    long, short = DRAFTS[0], AnnouncedProposal(2, 7, (1, 2))
    assert size(long, long) - size(long) == 1 + 4
    assert size(long, short, short) - size(long, short) == 2 + 3


def branches(**changes: Any) -> types_pb2.Branches:
    """Two branches of one and two draft tokens."""
    return types_pb2.Branches(
        **{"num_accepted": (0, 3), "num_draft_tokens": (1, 2), "token_ids": (1, 2, 3, 4, 5), **changes}
    )


BAD_BRANCHES = [
    ({"num_accepted": [0] * 65}, "num_accepted (length)", "65 is outside [0, 64]"),
    ({"num_accepted": [0]}, "num_draft_tokens (length)", "2 is outside [1, 1]"),
    ({"num_draft_tokens": [1, 2, 3]}, "num_draft_tokens (length)", "3 is outside [2, 2]"),
    ({"num_accepted": []}, "num_draft_tokens (length)", "2 is outside [0, 0]"),
    ({"num_accepted": [], "num_draft_tokens": []}, "token_ids (length)", "5 is outside [0, 0]"),
    ({"num_draft_tokens": []}, "token_ids (length)", "5 is no multiple of 2 branches"),
    ({"num_draft_tokens": [], "token_ids": []}, "token_ids (length)", "0 is outside [4, 130]"),
    ({"num_draft_tokens": [], "token_ids": [1, 2]}, "token_ids (length)", "2 is outside [4, 130]"),
    ({"num_draft_tokens": [], "token_ids": [1] * 132}, "token_ids (length)", "132 is outside [4, 130]"),
    ({"num_draft_tokens": [0, 3]}, "num_draft_tokens", "0 is outside [1, 64]"),
    ({"num_draft_tokens": [65, 1]}, "num_draft_tokens", "65 is outside [1, 64]"),
    ({"num_draft_tokens": [1, (1 << 32) - 1]}, "num_draft_tokens", "4294967295 is outside [1, 64]"),
    ({"token_ids": (1, 2, 3, 4)}, "token_ids (length)", "4 is outside [5, 5]"),
    ({"token_ids": (1, 2, 3, 4, 5, 6)}, "token_ids (length)", "6 is outside [5, 5]"),
]


@pytest.mark.parametrize(("changes", "field", "problem"), BAD_BRANCHES)
def test_bad_branches_are_refused(changes: dict[str, Any], field: str, problem: str) -> None:
    announced = drafter_service_pb2.Announcement(position=9, branches=branches(**changes))
    refused(lambda: convert_ahead.announcement_from_pb(announced), f"announced.branches.{field}", problem)
    told = verifier_service_pb2.FollowUps(round=2, position=9, branches=branches(**changes))
    refused(lambda: convert_ahead.follow_ups_from_pb(told), f"follow_ups.branches.{field}", problem)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"solo_below": 3.0}, "solo_below", "3.0 is outside"),
        ({"least_confidences": [0.5] * 3}, "least_confidences (length)", "3 is outside [0, 2]"),
        ({"least_confidences": [0.5, math.nan]}, "least_confidences", "nan is outside"),
        ({"least_confidences": [-0.5, 0.5]}, "least_confidences", "-0.5 is outside"),
    ],
)
def test_bad_follow_ups_are_refused(changes: dict[str, Any], field: str, problem: str) -> None:
    pb = verifier_service_pb2.FollowUps(round=2, position=9, branches=branches(), **changes)
    refused(lambda: convert_ahead.follow_ups_from_pb(pb), f"follow_ups.{field}", problem)
