"""The choice of one session by itself, word for word as the rule is: what the engine must come to for all at once."""

import torch

from specgate.runtime import noise, sampling
from specgate.runtime.batch_sampler import NEAR_TIE, Choosing, Chosen, answers
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams


def by_the_rule(logits: torch.Tensor, choosing: Choosing) -> Chosen:
    """Return argmax(log prob + g) of each row, one after the other."""
    params, prefix, logits = choosing.params, choosing.prefix, logits[:, : choosing.vocab_size]
    token_ids, near_ties, probs = [], [], []
    for i, row in enumerate(logits):
        position = choosing.position + i
        counts = None
        if prefix is not None:
            counts = sampling.token_counts(prefix.prompt, [*prefix.output, *prefix.draft[:i]], (), logits)
        scores = sampling.adjust(row[None], params, counts)[0]
        if not params.greedy:
            key = noise.row_key(choosing.seed, position, Purpose.SHARED)
            log_probs = sampling.log_probs(scores[None], params)[0]
            scores = log_probs.double() + noise.gumbel([key], torch.arange(len(row)))[0]
        token_ids.append(int(scores.argmax()))
        best = scores.topk(min(2, len(scores))).values.tolist()
        near_ties.append(len(best) > 1 and best[0] - best[1] < NEAR_TIE)
        probs.append(float(sampling.raw_log_probs(row[None])[0, token_ids[-1]].exp()))
    return Chosen(token_ids, near_ties, probs if choosing.with_probs else [])


def choose_alone(logits: torch.Tensor, params: SamplingParams, seed: int = 0, position: int = 0) -> Chosen:
    """Return what the engine chooses in a step of this session alone."""
    (answer,) = answers([logits], [Choosing(params, seed, position, logits.shape[-1])])
    if isinstance(answer, Exception):
        raise answer
    assert answer.chosen is not None
    return answer.chosen
