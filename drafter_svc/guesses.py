"""What the target's own token may be: the draft's best candidates at a position, without choosing any.

Nothing here goes out. A bad guess costs the time that its branch took, never a text.
"""

from collections.abc import Sequence

import torch

from drafter_svc.outcomes import MAX_RANKS
from specgate.runtime import noise, sampling
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams, SessionSpec, Verification

_NOISY = 64
"""Of each row, the likeliest tokens among which the best perturbed ones are looked for."""


def ranked(
    logits: torch.Tensor, params: SamplingParams, spec: SessionSpec, first_position: int, drafted: Sequence[int | None]
) -> list[list[int]]:
    """Return the best candidates of each row, the best first.

    In ``shared_noise`` they are ranked by the perturbed scores that the target will rank by. In ``rejection`` the
    target draws from what we cannot know: by probability.

    Args:
        logits: [rows, vocabulary], adjusted by bias and penalties; row i is of position ``first_position + i``.
        drafted: what was drafted there, which the target has then rejected; None where nothing was.
    """
    if params.greedy:
        scores = logits
    else:
        scores = sampling.log_probs(logits, params)
    if params.greedy or spec.verification is Verification.REJECTION:
        best = scores.topk(min(MAX_RANKS + 1, scores.shape[-1]))
        ids, values = best.indices, best.values
    else:
        ids, values = _noisiest(scores, spec.seed, first_position)
    rows = zip(ids.tolist(), values.tolist(), drafted, strict=True)
    return [
        [i for i, value in zip(row, scores, strict=True) if value > -torch.inf and i != but][:MAX_RANKS]
        for row, scores, but in rows
    ]


def _noisiest(log_probs: torch.Tensor, seed: int, first_position: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and scores of the best perturbed candidates of each row.

    Noise is dear, so only the likeliest ids of any row get some: a rare one whose noise wins is missed.
    """
    some = log_probs.topk(min(_NOISY, log_probs.shape[-1])).indices.unique()
    keys = [noise.row_key(seed, first_position + i, Purpose.SHARED) for i in range(len(log_probs))]
    perturbed = log_probs[:, some].double() + noise.gumbel(keys, some)
    best = perturbed.topk(min(MAX_RANKS + 1, len(some)))
    return some[best.indices], best.values
