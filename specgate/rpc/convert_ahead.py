"""Domain <-> protobuf for what is sent before it is asked for: a drafter's announcements, a target's follow-ups.

Every ``*_from_pb`` raises InvalidArgument, naming field, value and limit, before it copies anything of size.
Token ids are not held against a vocabulary here: the services know it (``validate.check_token_ids``).
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from specgate.errors import InvalidArgument
from specgate.rpc.convert import confidences_from_pb, draft_method_from_pb, draft_method_to_pb
from specgate.rpc.validate import check_length
from specgate.types import (
    ALWAYS_SOLO,
    MAX_BRANCHES,
    MAX_GAMMA,
    Ahead,
    AnnouncedProposal,
    Announcement,
    DraftMethod,
    FollowUp,
    FollowUps,
    RunningDraft,
    check_range,
)
from specgate.v1 import drafter_service_pb2, verifier_service_pb2
from specgate.v1 import types_pb2 as pb2

MAX_COMMITTED = 2 * (MAX_GAMMA + 1)
"""Tokens of two rounds; a proposal after them may be announced: the contract's limit."""


def announcement_to_pb(announcement: Announcement) -> drafter_service_pb2.DraftResponse:
    """Return the wire's message; of more proposals than it takes, the first ones."""
    proposals = announcement.proposals[:MAX_BRANCHES]
    announced = drafter_service_pb2.Announcement(
        position=announcement.position,
        num_committed=[len(one.token_ids) for one in proposals],
        num_draft_tokens=[len(one.draft_token_ids) for one in proposals],
        token_ids=[token_id for one in proposals for ids in one[:2] for token_id in ids],
        gamma=announcement.gamma,
        stop_below=announcement.stop_below,
        methods=_methods_to_pb(proposals),
        draft_confidences=[confidence for one in proposals for confidence in one.draft_confidences],
    )
    return drafter_service_pb2.DraftResponse(announced=announced)


def announcement_from_pb(pb: drafter_service_pb2.Announcement) -> Announcement:
    check_length("announced.num_committed", pb.num_committed, 0, MAX_BRANCHES)
    check_length("announced.num_draft_tokens", pb.num_draft_tokens, *(len(pb.num_committed),) * 2)
    for num_committed, num_draft_tokens in zip(pb.num_committed, pb.num_draft_tokens, strict=True):
        check_range("announced.num_committed", num_committed, 1, MAX_COMMITTED)
        check_range("announced.num_draft_tokens", num_draft_tokens, 1, MAX_GAMMA)
    check_range("announced.gamma", pb.gamma, max(pb.num_draft_tokens, default=0), MAX_GAMMA)
    check_range("announced.stop_below", pb.stop_below, 0.0, 1.0)
    check_length("announced.token_ids", pb.token_ids, *(sum(pb.num_committed) + sum(pb.num_draft_tokens),) * 2)
    if pb.methods:
        check_length("announced.methods", pb.methods, *(len(pb.num_committed),) * 2)
    methods = tuple(map(draft_method_from_pb, pb.methods)) or (DraftMethod.MODEL,) * len(pb.num_committed)
    confidences = iter(
        confidences_from_pb("announced.draft_confidences", pb.draft_confidences, sum(pb.num_draft_tokens))
    )
    token_ids, each = iter(pb.token_ids), zip(pb.num_committed, pb.num_draft_tokens, methods, strict=True)
    proposals = (
        AnnouncedProposal(
            tuple(islice(token_ids, committed)),
            tuple(islice(token_ids, drafted)),
            method,
            tuple(islice(confidences, drafted)),
        )
        for committed, drafted, method in each
    )
    return Announcement(pb.position, tuple(proposals), pb.gamma, pb.stop_below)


def ahead_to_pb(ahead: Ahead) -> drafter_service_pb2.DraftResponse:
    """Return a drafter's message that nobody asked for."""
    if isinstance(ahead, RunningDraft):
        return drafter_service_pb2.DraftResponse(running=running_draft_to_pb(ahead))
    return announcement_to_pb(ahead)


def running_draft_to_pb(draft: RunningDraft) -> pb2.RunningDraft:
    return pb2.RunningDraft(
        position=draft.position,
        draft_token_ids=draft.draft_token_ids,
        draft_confidences=draft.draft_confidences,
        method=draft_method_to_pb(draft.method),
        num_awaited=draft.num_awaited,
    )


def running_draft_from_pb(pb: pb2.RunningDraft) -> RunningDraft:
    check_length("running.draft_token_ids", pb.draft_token_ids, 1, MAX_GAMMA)
    ids = tuple(pb.draft_token_ids)
    confidences = confidences_from_pb("running.draft_confidences", pb.draft_confidences, len(ids))
    check_range("running.num_awaited", pb.num_awaited, 0, len(ids))
    return RunningDraft(pb.position, ids, draft_method_from_pb(pb.method), confidences, pb.num_awaited)


def _methods_to_pb(proposals: Sequence[AnnouncedProposal]) -> Sequence[pb2.DraftMethod]:
    if all(one.method is DraftMethod.MODEL for one in proposals):
        return ()
    return [draft_method_to_pb(one.method) for one in proposals]


def follow_ups_to_pb(follow_ups: FollowUps) -> verifier_service_pb2.FollowUps:
    least_confidences = [one.least_confidence for one in follow_ups.proposals]
    while least_confidences and not least_confidences[-1]:
        least_confidences.pop()
    return verifier_service_pb2.FollowUps(
        round=follow_ups.round,
        position=follow_ups.position,
        solo_below=follow_ups.solo_below,
        max_solo_tokens=follow_ups.max_solo_tokens,
        branches=_branches_to_pb(follow_ups.proposals),
        least_confidences=least_confidences,
    )


def follow_ups_from_pb(pb: verifier_service_pb2.FollowUps) -> FollowUps:
    check_range("follow_ups.solo_below", pb.solo_below, 0.0, ALWAYS_SOLO)
    lengths = _lengths(pb.branches, "follow_ups.branches")
    check_length("follow_ups.least_confidences", pb.least_confidences, 0, len(lengths))
    for confidence in pb.least_confidences:
        check_range("follow_ups.least_confidences", confidence, 0.0, ALWAYS_SOLO)
    least_confidences = (*pb.least_confidences, *(0.0,) * (len(lengths) - len(pb.least_confidences)))
    proposals = tuple(_follow_ups(pb.branches, lengths, least_confidences))
    return FollowUps(pb.round, pb.position, proposals, pb.solo_below, pb.max_solo_tokens)


def _branches_to_pb(branches: Sequence[FollowUp]) -> pb2.Branches:
    lengths = [len(one.draft_token_ids) for one in branches]
    return pb2.Branches(
        num_accepted=[one.num_accepted for one in branches],
        num_draft_tokens=lengths if len(set(lengths)) > 1 else (),
        token_ids=[token_id for one in branches for token_id in (one.token_id, *one.draft_token_ids)],
    )


def _lengths(pb: pb2.Branches, field: str) -> Sequence[int]:
    """Return how many draft tokens each branch has, all of which are there; ``field`` is their name in errors."""
    check_length(f"{field}.num_accepted", pb.num_accepted, 0, MAX_BRANCHES)
    num_branches, num_ids = len(pb.num_accepted), len(pb.token_ids)
    if num_branches and not pb.num_draft_tokens:
        check_length(f"{field}.token_ids", pb.token_ids, 2 * num_branches, (1 + MAX_GAMMA) * num_branches)
        if num_ids % num_branches:
            raise InvalidArgument(f"{field}.token_ids (length)", f"{num_ids} is no multiple of {num_branches} branches")
        return [num_ids // num_branches - 1] * num_branches
    check_length(f"{field}.num_draft_tokens", pb.num_draft_tokens, num_branches, num_branches)
    for num_draft_tokens in pb.num_draft_tokens:
        check_range(f"{field}.num_draft_tokens", num_draft_tokens, 1, MAX_GAMMA)
    expected = num_branches + sum(pb.num_draft_tokens)
    check_length(f"{field}.token_ids", pb.token_ids, expected, expected)
    return pb.num_draft_tokens


def _follow_ups(pb: pb2.Branches, lengths: Sequence[int], least_confidences: Sequence[float]) -> Iterator[FollowUp]:
    token_ids = iter(pb.token_ids)
    for num_accepted, num_draft_tokens, least in zip(pb.num_accepted, lengths, least_confidences, strict=True):
        yield FollowUp(num_accepted, next(token_ids), tuple(islice(token_ids, num_draft_tokens)), least)
