"""The choice of one session by itself, word for word as the rule is: what the engine must come to for all at once."""

import math

import torch

from specgate.runtime import noise, sampling
from specgate.runtime.batch_sampler import SampledRows, SamplingStep, answers
from specgate.runtime.filters import near_tie_bound
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams


def by_the_rule(logits: torch.Tensor, choosing: SamplingStep) -> SampledRows:
    """Return argmax(log prob + g) of each row, one after the other."""
    params, prefix, logits = choosing.params, choosing.prefix, logits[:, : choosing.vocab_size]
    token_ids, near_ties, probs = [], [], []
    for i, row in enumerate(logits):
        position = choosing.position + i
        counts = None
        if prefix is not None:
            counts = sampling.token_counts(prefix.prompt, [*prefix.output, *prefix.draft[:i]], (), logits)
        scores = adjusted = sampling.adjust(row[None], params, counts)[0]
        if not params.greedy:
            key = noise.row_key(choosing.seed, position, Purpose.SHARED)
            log_probs = sampling.log_probs(scores[None], params)[0]
            gumbel = noise.gumbel([key], torch.arange(len(row)))[0]
            scores = log_probs.double() + gumbel
        token_ids.append(int(scores.argmax()))
        if params.greedy:
            near_ties.append(_is_near(token_ids[-1], scores, near_tie_bound(params)))
        else:
            near_ties.append(_is_near_filtered(token_ids[-1], adjusted / params.temperature, gumbel, params))
        probs.append(float(sampling.raw_log_probs(row[None])[0, token_ids[-1]].exp()))
    return SampledRows(token_ids, near_ties, probs if choosing.with_probs else [])


def choose_alone(logits: torch.Tensor, params: SamplingParams, seed: int = 0, position: int = 0) -> SampledRows:
    """Return what the engine chooses in a step of this session alone."""
    (answer,) = answers([logits], [SamplingStep(params, seed, position, logits.shape[-1])])
    if isinstance(answer, Exception):
        raise answer
    assert answer.sampled is not None
    return answer.sampled


def _is_near(token_id: int, scores: torch.Tensor, bound: float) -> bool:
    others = scores.clone()
    others[token_id] = -math.inf
    return bool(scores[token_id] - others.max() < bound)


def _is_near_filtered(token_id: int, scaled: torch.Tensor, gumbel: torch.Tensor, params: SamplingParams) -> bool:
    """Look at one token after the other: may rounding, which moves gaps by up to a bound, let it in or leave it out?"""
    s, bound = scaled.double(), near_tie_bound(params)
    sure = possible = s > -math.inf
    if 0 < params.top_k < len(s):
        kth, following = s.topk(params.top_k + 1).values[-2:]
        sure, possible = sure & (s >= following + bound), possible & (s >= kth - bound)
    weights, odds = (s - s.max()).exp(), math.inf if params.top_p == 1.0 else params.top_p / (1.0 - params.top_p)

    def may_be_in(token_id: int) -> bool:
        before = s > s[token_id] + bound
        after = weights[~before & possible].sum()
        in_top_p = weights[before].sum() / after < odds * math.exp(bound)
        in_min_p = weights[token_id] >= params.min_p * math.exp(-bound)
        return bool(possible[token_id] & in_top_p & in_min_p)

    def may_be_out(token_id: int) -> bool:
        before = possible & (s >= s[token_id] - bound)
        before[token_id] = False
        after = weights[~before & sure].sum()
        in_top_p = weights[before].sum() / after < odds * math.exp(-bound)
        in_min_p = weights[token_id] >= params.min_p * math.exp(bound)
        return not bool(sure[token_id] & in_top_p & in_min_p)

    perturbed = s + gumbel
    rivals = possible if may_be_out(token_id) else perturbed > perturbed[token_id] - bound
    return any(may_be_in(rival) for rival in rivals.nonzero()[:, 0].tolist() if rival != token_id)
