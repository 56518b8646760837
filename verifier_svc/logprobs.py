"""Raw log-probabilities of given tokens by the target: temperature 1, no filters."""

import math
from collections.abc import Iterable, Sequence

import torch

from specgate.runtime import sampling
from specgate.types import TokenLogprobs


def logprobs_of(logits: torch.Tensor, token_ids: Sequence[int], num_top: int | None) -> tuple[TokenLogprobs, ...]:
    """Return the log-probability of each token and of the ``num_top`` likeliest ones in its row; () for None.

    Args:
        logits: [rows, vocabulary], one row a token, or more.
    """
    if num_top is None:
        return ()
    raw = sampling.raw_log_probs(logits[: len(token_ids)])
    top = raw.topk(min(num_top, raw.shape[-1]), dim=-1)
    own: list[float] = raw[range(len(token_ids)), list(token_ids)].tolist()
    likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(
        TokenLogprobs(logprob, _possible(zip(*row, strict=True))) for logprob, row in zip(own, likeliest, strict=True)
    )


def _possible(likeliest: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Leave out what a grammar does not allow."""
    return tuple(one for one in likeliest if one[1] > -math.inf)
