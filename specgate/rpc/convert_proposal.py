"""Domain <-> protobuf for a proposal and the distributions that its tokens were sampled from.

``proposal_from_pb`` raises InvalidArgument, naming field, value and limit, before it copies anything of size.
"""

import math

from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_length
from specgate.types import MAX_GAMMA, Proposal, SparseDistribution
from specgate.v1 import types_pb2 as pb2

MAX_SUPPORT = 4096
"""Token ids in one draft distribution."""


def proposal_to_pb(proposal: Proposal) -> pb2.Proposal:
    """Return the wire's message. How it was drafted is not part of it."""
    return pb2.Proposal(
        draft_token_ids=proposal.draft_token_ids,
        draft_probs=[pb2.SparseDistribution(token_ids=one.token_ids, probs=one.probs) for one in proposal.draft_probs],
    )


def proposal_from_pb(pb: pb2.Proposal) -> Proposal:
    """Return the domain's value; an empty proposal is a valid one."""
    check_length("draft_token_ids", pb.draft_token_ids, 0, MAX_GAMMA)
    if not pb.draft_probs:
        return Proposal(tuple(pb.draft_token_ids))
    if len(pb.draft_probs) != len(pb.draft_token_ids):
        problem = f"{len(pb.draft_probs)} is neither 0 nor the {len(pb.draft_token_ids)} of draft_token_ids"
        raise InvalidArgument("draft_probs (length)", problem)
    supports = (_support_of(pb.draft_token_ids[index], probs, index) for index, probs in enumerate(pb.draft_probs))
    return Proposal(tuple(pb.draft_token_ids), tuple(supports))


def _support_of(draft_token_id: int, pb: pb2.SparseDistribution, index: int) -> SparseDistribution:
    distribution = _sparse_distribution_from_pb(pb, f"draft_probs[{index}]")
    if draft_token_id not in distribution.token_ids:
        problem = f"draft token id {draft_token_id} is not in the distribution that it was sampled from"
        raise InvalidArgument(f"draft_probs[{index}].token_ids", problem)
    return distribution


def _sparse_distribution_from_pb(pb: pb2.SparseDistribution, field: str) -> SparseDistribution:
    size = len(pb.token_ids)
    if not 1 <= size <= MAX_SUPPORT:
        raise InvalidArgument(f"{field}.token_ids (length)", f"{size} is outside [1, {MAX_SUPPORT}]")
    if len(pb.probs) != size:
        raise InvalidArgument(f"{field}.probs (length)", f"{len(pb.probs)} is not the {size} of token_ids")
    token_ids, probs = tuple(pb.token_ids), tuple(pb.probs)
    if len(set(token_ids)) != size:
        raise InvalidArgument(f"{field}.token_ids", "are not distinct")
    # A sum of float32 values cannot overflow float64, so it is finite if and only if all of them are.
    if not (math.isfinite(sum(probs)) and min(probs) > 0.0):
        wrong = next(prob for prob in probs if not (math.isfinite(prob) and prob > 0.0))
        raise InvalidArgument(f"{field}.probs", f"{wrong} is not positive and finite")
    return SparseDistribution(token_ids, probs)
