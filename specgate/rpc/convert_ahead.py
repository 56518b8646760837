"""Domain <-> protobuf for what is told before it is asked for: a drafter's announcements, a target's follow-ups.

Every ``*_from_pb`` raises InvalidArgument, naming field, value and limit, before it copies anything of size.
Token ids are not held against a vocabulary here: the services know it (``validate.check_token_ids``).
"""

from collections.abc import Iterator, Sequence

from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_length
from specgate.types import (
    ALWAYS_SOLO,
    MAX_GAMMA,
    AnnouncedProposal,
    Announcement,
    FollowUp,
    FollowUps,
    check_range,
)
from specgate.v1 import drafter_service_pb2, verifier_service_pb2
from specgate.v1 import types_pb2 as pb2

MAX_BRANCHES = 64
"""In one message."""


def announcement_to_pb(announcement: Announcement) -> drafter_service_pb2.DraftResponse:
    """Return the wire's message; of more proposals than it takes, the first ones."""
    announced = drafter_service_pb2.Announcement(
        position=announcement.position,
        further=announcement.further,
        number=announcement.number,
        branches=_branches_to_pb(announcement.proposals[:MAX_BRANCHES]),
    )
    return drafter_service_pb2.DraftResponse(announced=announced)


def announcement_from_pb(pb: drafter_service_pb2.Announcement) -> Announcement:
    """Return the domain's value."""
    proposals = (AnnouncedProposal(*branch) for branch in _branches_from_pb(pb.branches, "announced.branches"))
    return Announcement(pb.position, tuple(proposals), pb.further, pb.number)


def follow_ups_to_pb(follow_ups: FollowUps) -> verifier_service_pb2.FollowUps:
    """Return the wire's message."""
    least_confidences = [one.least_confidence for one in follow_ups.proposals]
    return verifier_service_pb2.FollowUps(
        round=follow_ups.round,
        position=follow_ups.position,
        solo_below=follow_ups.solo_below,
        max_solo_tokens=follow_ups.max_solo_tokens,
        branches=_branches_to_pb(follow_ups.proposals),
        least_confidences=least_confidences if any(least_confidences) else (),
    )


def follow_ups_from_pb(pb: verifier_service_pb2.FollowUps) -> FollowUps:
    """Return the domain's value."""
    check_range("follow_ups.solo_below", pb.solo_below, 0.0, ALWAYS_SOLO)
    branches = list(_branches_from_pb(pb.branches, "follow_ups.branches"))
    if len(pb.least_confidences) not in (0, len(branches)):
        problem = f"{len(pb.least_confidences)} is neither 0 nor the {len(branches)} of branches"
        raise InvalidArgument("follow_ups.least_confidences (length)", problem)
    for confidence in pb.least_confidences:
        check_range("follow_ups.least_confidences", confidence, 0.0, ALWAYS_SOLO)
    confidences = pb.least_confidences or (0.0,) * len(branches)
    proposals = (FollowUp(*branch, least) for branch, least in zip(branches, confidences, strict=True))
    return FollowUps(pb.round, pb.position, tuple(proposals), pb.solo_below, pb.max_solo_tokens)


def _branches_to_pb(branches: Sequence[AnnouncedProposal | FollowUp]) -> pb2.Branches:
    return pb2.Branches(
        num_accepted=[one.num_accepted for one in branches],
        num_draft_tokens=[len(one.draft_token_ids) for one in branches],
        token_ids=[token_id for one in branches for token_id in (one.token_id, *one.draft_token_ids)],
    )


def _branches_from_pb(pb: pb2.Branches, field: str) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield num_accepted, the target's choice and the draft of each branch; ``field`` is their name in errors."""
    size = len(pb.num_accepted)
    check_length(f"{field}.num_accepted", pb.num_accepted, 0, MAX_BRANCHES)
    check_length(f"{field}.num_draft_tokens", pb.num_draft_tokens, size, size)
    for num_draft_tokens in pb.num_draft_tokens:
        check_range(f"{field}.num_draft_tokens", num_draft_tokens, 1, MAX_GAMMA)
    num_ids = size + sum(pb.num_draft_tokens)
    check_length(f"{field}.token_ids", pb.token_ids, num_ids, num_ids)
    token_ids, first = tuple(pb.token_ids), 0
    for num_accepted, num_draft_tokens in zip(pb.num_accepted, pb.num_draft_tokens, strict=True):
        end = first + 1 + num_draft_tokens
        yield num_accepted, token_ids[first], token_ids[first + 1 : end]
        first = end
