"""What the target may choose at a position, guessed from the draft's logits. Guesses are never sent.

A bad guess costs the time of its branch and changes no text.
"""

import torch

from drafter_svc.run_ahead.outcomes import Candidate
from specgate.runtime import noise, sampling
from specgate.runtime.sampling_step import SamplingStep

MAX_CANDIDATES = 16
"""Of one position."""
_NOISY = 64
"""Of each position, the likeliest tokens among which the best perturbed ones are looked for."""


def candidates(
    logits: torch.Tensor, choosing: SamplingStep, *, rejects: bool, sharpness: float = 1.0
) -> list[list[Candidate]]:
    """Return the best candidates of each row, the best first, with their chances.

    In ``shared_noise`` the target ranks by scores with the same noise; in greedy by its own scores, which are like the
    draft's. In both, a token's chance is about the softmax of ``sharpness`` times the scores. In ``rejection`` the
    target samples with other noise: chances are the draft's probabilities.

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

    Noise is expensive, so only ids that are likely in some row get it: an unlikely id whose noise wins is missed.
    """
    some = log_probs.topk(min(_NOISY, log_probs.shape[-1])).indices.unique()
    perturbed = noise.gumbel(choosing.noise_keys(len(log_probs)), some).add_(log_probs[:, some])
    values, places = perturbed.topk(min(MAX_CANDIDATES, len(some)))
    return values, some[places]
