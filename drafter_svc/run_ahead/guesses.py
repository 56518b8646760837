"""What the target may choose at a position, as far as the draft can tell. Nothing here goes out.

A bad guess costs the time that its branch took, never a text.
"""

import torch

from drafter_svc.run_ahead.outcomes import Candidate
from specgate.runtime import noise, sampling
from specgate.runtime.batch_sampler import SamplingStep

MAX_CANDIDATES = 16
"""Of one position."""
_NOISY = 64
"""Of each position, the likeliest tokens among which the best perturbed ones are looked for."""


def candidates(
    logits: torch.Tensor, choosing: SamplingStep, *, rejects: bool, sharpness: float = 1.0
) -> list[list[Candidate]]:
    """Return the best candidates of each row, the best first, with their chances.

    In ``shared_noise`` the target will rank by scores with the same noise; in greedy by its own, which are like the
    draft's. Either way a token that leads by so much is chosen about as often as the softmax of ``sharpness`` times the
    scores says. In ``rejection`` the target draws from what we do not know: chances are the draft's probabilities.

    Args:
        logits: [rows, vocabulary], adjusted by bias and penalties.
        choosing: how the draft chooses there.
    """
    params = choosing.params
    scores = logits if params.greedy else sampling.log_probs(logits, params)
    if params.greedy or rejects:
        values, ids = scores.topk(min(MAX_CANDIDATES, scores.shape[-1]))
    else:
        values, ids = _noisiest(scores, choosing)
    rows = zip(ids.tolist(), (values if rejects else values * sharpness).softmax(-1).tolist(), strict=True)
    return [[Candidate(*pair) for pair in zip(*row, strict=True) if pair[1] > 0] for row in rows]


def _noisiest(log_probs: torch.Tensor, choosing: SamplingStep) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores and ids of the best perturbed candidates of each row.

    Noise is dear, so only ids that are likely in some row get any: a rare one whose noise wins is missed.
    """
    some = log_probs.topk(min(_NOISY, log_probs.shape[-1])).indices.unique()
    perturbed = noise.gumbel(choosing.noise_keys(len(log_probs)), some).add_(log_probs[:, some])
    values, places = perturbed.topk(min(MAX_CANDIDATES, len(some)))
    return values, some[places]
