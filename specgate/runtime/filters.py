"""Top-k, top-p and min-p: which tokens they keep, and which of them rounding may let in or out.

Every filter cuts the logits of a row at some height. Rounding moves logits, and the cut with them.
"""

import math
from typing import NamedTuple

import torch

from specgate.types import SamplingParams

NEAR_TIE = 1e-4
"""The gap of two logits may change by as much under another batch shape.

That is fifty steps of float32 between 16 and 32, where a best logit often lies.
"""


def near_tie_bound(params: SamplingParams) -> float:
    """Return by how much the gap of two scores may change: that of two logits, as far as ``params`` stretch it.

    A high temperature does not make it smaller: the scores are rounded too.
    """
    stretch = max(params.repetition_penalty, 1.0 / params.repetition_penalty)
    return NEAR_TIE * stretch / (1.0 if params.greedy else min(params.temperature, 1.0))


class Edge(NamedTuple):
    """How far rounding may move a cut, float32 [rows, 1] each, in logits over temperature.

    Attributes:
        sure: a token from here on is kept, however rounding goes.
        possible: a token below is left out, however rounding goes.
    """

    sure: torch.Tensor
    possible: torch.Tensor


class Support(NamedTuple):
    """What may be sampled.

    Attributes:
        scaled: logits over temperature, float32 [rows, vocabulary].
        kept: the same, -inf where filtered out.
        edge: of all filters together; None: there are none.
    """

    scaled: torch.Tensor
    kept: torch.Tensor
    edge: Edge | None


def support(adjusted: torch.Tensor, params: SamplingParams) -> Support:
    """Apply temperature and filters to logits with bias and penalties, [rows, vocabulary]."""
    scaled = kept = adjusted if params.temperature == 1.0 else adjusted / params.temperature
    bound = near_tie_bound(params)
    edges: list[Edge] = []
    if 0 < params.top_k < scaled.shape[-1]:
        kth, following = scaled.topk(params.top_k + 1, dim=-1).values[:, -2:].split(1, dim=-1)
        kept = kept.masked_fill(kept < kth, -torch.inf)
        edges.append(Edge(following + bound, kth - bound))
    if params.top_p < 1.0:
        kept, edge = _keep_top_p(scaled, kept, params.top_p, bound, edges[0] if edges else None)
        edges.append(edge)
    if params.min_p > 0.0:
        probs = kept.softmax(-1)
        cut = kept.amax(-1, keepdim=True) + math.log(params.min_p)
        kept = kept.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), -torch.inf)
        edges.append(Edge(cut + bound, cut - bound))
    # A token must get past every filter.
    tightest = [torch.cat(cuts, dim=-1).amax(-1, keepdim=True) for cuts in zip(*edges, strict=True)]
    return Support(scaled, kept, Edge(*tightest) if tightest else None)


def _keep_top_p(
    scaled: torch.Tensor, kept: torch.Tensor, top_p: float, bound: float, top_k: Edge | None
) -> tuple[torch.Tensor, Edge]:
    """Keep the smallest set of tokens whose mass reaches ``top_p``; the likeliest always stays.

    Rounding changes the odds of the mass before a token by a factor of up to exp(bound), and the order of tokens that
    are ``bound`` apart or less.
    """
    ordered, order = kept.sort(dim=-1, descending=True, stable=True)
    # In float64: a GPU adds up one row and several rows in different orders.
    probs = ordered.softmax(-1, dtype=torch.float64)
    mass_before = probs.cumsum(-1) - probs
    dropped = (mass_before >= top_p).scatter(1, order, mass_before >= top_p)
    dropped.scatter_(1, order[:, :1], False)
    shrink = math.exp(-bound)
    limits = top_p * shrink / (top_p * shrink + 1.0 - top_p), top_p / (top_p + (1.0 - top_p) * shrink)
    sure, possible = (probs.new_full((len(probs), 1), limit) for limit in limits)
    end = ordered.shape[-1] - 1
    if top_k is not None:
        # Where rounding may change what top-k keeps, the mass of all of it changes too. None that it may let in weighs
        # more than the first that it may leave out.
        num_sure, num_possible = ((scaled >= cut).sum(-1, keepdim=True) for cut in top_k)
        following = num_sure.clamp(max=end)
        mass = mass_before.gather(1, following)
        sure *= mass
        possible *= mass + (num_possible - num_sure) * probs.gather(1, following)
    first_unsure, last_possible = torch.searchsorted(mass_before, sure), torch.searchsorted(mass_before, possible) - 1
    # What a search finds in a row of NaN is not promised, and an index out of range would lose a GPU.
    edge = Edge(
        ordered.gather(1, first_unsure.clamp(max=end)).masked_fill_(first_unsure > end, -torch.inf) + bound,
        ordered.gather(1, last_possible.clamp(min=0)) - bound,
    )
    return kept.masked_fill(dropped, -torch.inf), edge
