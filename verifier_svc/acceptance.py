"""The acceptance rules: which draft tokens are committed, and the target's own token after them.

accepted token   a draft token that the target commits
recovered token  the target's own token after the first rejection
bonus token      the target's own token after full acceptance
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specgate.runtime import noise
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling import sample_weights
from specgate.types import Proposal, SparseDistribution


class Acceptance(NamedTuple):
    """``num_accepted`` draft tokens, then ``token_id``."""

    num_accepted: int
    token_id: int


def accept_agreeing(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> Acceptance:
    """Accept while the draft names the target's own choice; shared noise and greedy.

    Args:
        target_token_ids: the target's choice at each position, one more than there are draft tokens.
    """
    agreed = 0
    while agreed < len(draft_token_ids) and draft_token_ids[agreed] == target_token_ids[agreed]:
        agreed += 1
    return Acceptance(agreed, target_token_ids[agreed])


def accept_by_rejection(target_probs: torch.Tensor, proposal: Proposal, seed: int, position: int) -> Acceptance:
    """Speculative sampling, Leviathan et al. 2023, algorithm 1: exact for any draft distribution.

    Accept x with probability min(1, target(x) / draft(x)); after the first rejection emit a sample of
    norm(max(target - draft, 0)), after full acceptance one of the target.

    Args:
        target_probs: float64 [len(proposal) + 1, vocabulary], each row sums to 1 up to rounding.
        proposal: draft tokens, each with the distribution it was sampled from.
        position: of the first draft token; keys the randomness together with ``seed``.
    """
    for i, (token_id, shipped) in enumerate(zip(proposal.draft_token_ids, proposal.draft_probs, strict=True)):
        draft_probs = dense(shipped, target_probs[i])
        ratio = float(target_probs[i, token_id] / draft_probs[token_id])
        if not noise.uniform(noise.row_key(seed, position + i, Purpose.ACCEPT)) < ratio:
            return Acceptance(i, _recover(target_probs[i], draft_probs, seed, position + i))
    return Acceptance(len(proposal), sample_target(target_probs[-1], seed, position + len(proposal)))


def sample_target(target_probs: torch.Tensor, seed: int, position: int) -> int:
    """Return a sample of target_probs, float64 [vocabulary]."""
    return sample_weights(target_probs, noise.uniform(noise.row_key(seed, position, Purpose.TARGET)))


def dense(shipped: SparseDistribution, like: torch.Tensor) -> torch.Tensor:
    """Return the shipped distribution, normalised, as a float64 row over the vocabulary of ``like``."""
    weights = torch.tensor(shipped.probs, dtype=torch.float32).double()
    row = torch.zeros_like(like)
    row[torch.tensor(shipped.token_ids, device=like.device)] = (weights / weights.sum()).to(like.device)
    return row


def _recover(target_probs: torch.Tensor, draft_probs: torch.Tensor, seed: int, position: int) -> int:
    residual = (target_probs - draft_probs).clamp_min(0)
    # Equal distributions reject by rounding alone; then the target itself is what is left.
    weights = residual if float(residual.sum()) > 0 else target_probs
    return sample_weights(weights, noise.uniform(noise.row_key(seed, position, Purpose.RESIDUAL)))
