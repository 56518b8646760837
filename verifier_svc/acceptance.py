"""The acceptance rules: which draft tokens are committed, and the target's own token after them.

accepted token   a draft token that the target commits
recovered token  the target's own token after the first rejection
bonus token      the target's own token after full acceptance
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specgate.runtime import noise, sampling
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling import sample_weights
from specgate.runtime.sampling_step import ForwardResult, SamplingStep, adjusted
from specgate.types import Proposal, SparseDistribution


class Acceptance(NamedTuple):
    """``num_accepted`` draft tokens, then ``token_id``."""

    num_accepted: int
    token_id: int


class Judgement(NamedTuple):
    """An acceptance, and how many of the target's choices in it were near ties."""

    acceptance: Acceptance
    near_ties: int


def decide(answer: ForwardResult, proposal: Proposal, step: SamplingStep) -> Judgement:
    """Judge a proposal by what the target sampled, or by rejection if the answer holds logits alone.

    Args:
        answer: a row for each draft token, and one after them.
        step: how these rows are sampled.
    """
    if (sampled := answer.sampled) is not None:
        acceptance = accept_agreeing(proposal.draft_token_ids, sampled.token_ids)
        return Judgement(acceptance, sum(sampled.near_ties[: acceptance.num_accepted + 1]))
    target_probs = sampling.log_probs(adjusted(answer.logits, step), step.params).double().exp()
    return Judgement(accept_by_rejection(target_probs, proposal, step.seed, step.position), 0)


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
    for i, ratio in enumerate(_ratios(target_probs, proposal)):
        if not noise.uniform(noise.row_key(seed, position + i, Purpose.ACCEPT)) < ratio:
            draft_probs = dense(proposal.draft_probs[i], target_probs[i])
            return Acceptance(i, _recover(target_probs[i], draft_probs, seed, position + i))
    return Acceptance(len(proposal), sample_target(target_probs[-1], seed, position + len(proposal)))


def sample_target(target_probs: torch.Tensor, seed: int, position: int) -> int:
    """Return a sample of target_probs, float64 [vocabulary]."""
    return sample_weights(target_probs, noise.uniform(noise.row_key(seed, position, Purpose.TARGET)))


def dense(shipped: SparseDistribution, like: torch.Tensor) -> torch.Tensor:
    """Return the shipped distribution, normalised, as a float64 row over the vocabulary of ``like``."""
    ids = noise.on_device(shipped.token_ids, torch.int64, like.device)
    return torch.zeros_like(like).index_copy_(0, ids, normalised(shipped).to(like.device))


def normalised(shipped: SparseDistribution) -> torch.Tensor:
    """Return the probabilities of ``shipped.token_ids``, float64, on the host."""
    weights = torch.tensor(shipped.probs, dtype=torch.float32).double()
    return weights / weights.sum()


def _ratios(target_probs: torch.Tensor, proposal: Proposal) -> list[float]:
    """Return target(x) / draft(x) of every draft token x, in one transfer from the device."""
    token_ids = noise.on_device(proposal.draft_token_ids, torch.int64, target_probs.device)
    by_target = target_probs[:-1].gather(1, token_ids[:, None])[:, 0].cpu()
    by_draft = torch.zeros(len(proposal), dtype=torch.float64)
    for i, (token_id, shipped) in enumerate(zip(proposal.draft_token_ids, proposal.draft_probs, strict=True)):
        if token_id in shipped.token_ids:
            by_draft[i] = normalised(shipped)[shipped.token_ids.index(token_id)]
    ratios: list[float] = (by_target / by_draft).numpy().tolist()
    return ratios


def _recover(target_probs: torch.Tensor, draft_probs: torch.Tensor, seed: int, position: int) -> int:
    residual = (target_probs - draft_probs).clamp_min(0)
    # Equal distributions reject by rounding alone; then nothing is left, and the target itself is sampled.
    weights = torch.where(residual.sum() > 0, residual, target_probs)
    return sample_weights(weights, noise.uniform(noise.row_key(seed, position, Purpose.RESIDUAL)))
