"""Pure functions from logits to log-probabilities to token ids. Nothing here draws from a stateful generator."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specgate.runtime import noise
from specgate.runtime.filters import support
from specgate.types import SamplingParams


class TokenCounts(NamedTuple):
    """What penalties look at, one row a position: each with that position's own prefix.

    ``in_prompt`` bool [rows, vocabulary]; ``in_output`` int64 [rows, vocabulary], occurrences.
    """

    in_prompt: torch.Tensor
    in_output: torch.Tensor


def token_counts(prompt: Sequence[int], output: Sequence[int], draft: Sequence[int], like: torch.Tensor) -> TokenCounts:
    """Return the counts of ``len(draft) + 1`` rows: row i has seen the output and ``draft[:i]``.

    Args:
        like: a tensor [..., vocabulary] on the device to use.
    """
    vocab_size, device = like.shape[-1], like.device
    in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    in_prompt.index_fill_(0, noise.on_device(prompt, torch.int64, device), True)
    ids = noise.on_device(output, torch.int64, device)
    # On CUDA bincount would wait for the device.
    in_output = torch.zeros(vocab_size, dtype=torch.int64, device=device).index_add_(0, ids, torch.ones_like(ids))
    in_output = in_output.repeat(len(draft) + 1, 1)
    for i, token_id in enumerate(draft):
        in_output[i + 1 :, token_id] += 1
    return TokenCounts(in_prompt.expand(len(in_output), -1), in_output)


def adjust(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts | None) -> torch.Tensor:
    """Return float32 logits [rows, vocabulary] with bias and penalties, before temperature.

    Repetition penalty: Keskar et al. 2019 (CTRL); presence and frequency penalty: OpenAI's definition.
    """
    logits = logits.float()
    if params.logit_bias:
        ids = noise.on_device(list(params.logit_bias), torch.int64, logits.device)
        bias = noise.on_device(list(params.logit_bias.values()), torch.float32, logits.device)
        logits = logits.index_add(1, ids, bias.expand(len(logits), -1).contiguous())
    if counts is not None:
        seen = counts.in_prompt | (counts.in_output > 0)
        factor = params.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
        logits = logits - params.frequency_penalty * counts.in_output
        logits = logits - params.presence_penalty * (counts.in_output > 0)
    return logits


def log_probs(adjusted: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the log of the distribution that is sampled, float32 [rows, vocabulary], -inf where filtered out."""
    return support(adjusted, params).kept.log_softmax(-1)


def sample_weights(weights: torch.Tensor, uniform: float) -> int:
    """Return the index that ``uniform`` in (0, 1) selects from non-negative float64 weights [n], by inverse CDF."""
    cumulative = weights.cumsum(0)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    # Rounding of the product can reach the total itself: then the last index of positive weight is meant.
    return index if index < len(weights) else int(weights.nonzero()[-1])


def raw_log_probs(logits: torch.Tensor) -> torch.Tensor:
    """Return float32 log-probabilities at temperature 1 with no filters, what confidence and logprobs mean."""
    return logits.float().log_softmax(-1)
