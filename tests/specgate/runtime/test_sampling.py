"""Sampling: the same numbers as transformers' own processors, row for row, each row with its own prefix."""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specgate.runtime import sampling
from specgate.types import SamplingParams
from tests.support.chisquare import p_value
from tests.support.choices import choose_alone

VOCAB = 40
LAST_UNIFORM = 1.0 - 2.0**-53


def random_logits(rows: int = 4, seed: int = 0) -> torch.Tensor:
    return 2.0 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def reference(params: SamplingParams, prefix: list[int], row: torch.Tensor) -> torch.Tensor:
    """One row through transformers' processors, in the order in which its generate applies them."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(i,): bias for i, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(MinPLogitsWarper(params.min_p))
    return processors(torch.tensor([prefix], dtype=torch.long), row[None].clone())[0].log_softmax(-1)


PROMPT, OUTPUT, DRAFT = [1, 2, 3, 3], [3, 5, 7, 5], [8, 3, 8]
"""Row i of a verification has seen the output and i draft tokens, each counted once."""
PARAMS = [
    *(SamplingParams(temperature=temperature) for temperature in (1.0, 0.3, 2.5)),
    *(SamplingParams(top_k=top_k) for top_k in (1, 7, VOCAB, VOCAB + 5)),
    *(SamplingParams(top_p=top_p) for top_p in (0.05, 0.6, 0.999)),
    *(SamplingParams(min_p=min_p) for min_p in (0.02, 0.3, 1.0)),
    *(SamplingParams(repetition_penalty=penalty) for penalty in (1.7, 0.6)),
    SamplingParams(logit_bias={3: 4.0, 11: -100.0, 12: 0.5}),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0.5, min_p=0.1),
    SamplingParams(temperature=2.0, min_p=0.3),
    SamplingParams(temperature=1.4, top_p=0.9, repetition_penalty=1.3, logit_bias={0: 5.0, 7: -3.0}),
    SamplingParams(top_k=12, min_p=0.1, repetition_penalty=0.8, logit_bias={39: 2.0}),
]


def test_rows_equal_those_of_transformers() -> None:
    logits = random_logits(len(DRAFT) + 1)
    for params in PARAMS:
        counts = sampling.token_counts(PROMPT, OUTPUT, DRAFT, logits) if params.has_penalties else None
        actual = sampling.log_probs(sampling.adjust(logits, params, counts), params)
        for i, row in enumerate(logits):
            expected = reference(params, [*PROMPT, *OUTPUT, *DRAFT[:i]], row)
            assert torch.equal(actual[i].isfinite(), expected.isfinite()), params
            assert torch.allclose(actual[i].exp(), expected.exp(), rtol=1e-5, atol=1e-7), params


def test_presence_and_frequency_count_the_output_alone() -> None:
    params = SamplingParams(presence_penalty=0.75, frequency_penalty=-0.25)
    logits = random_logits(len(DRAFT) + 1)
    actual = sampling.adjust(logits, params, sampling.token_counts(PROMPT, OUTPUT, DRAFT, logits))
    for i, row in enumerate(logits):
        counts = Counter([*OUTPUT, *DRAFT[:i]])
        penalty = torch.tensor([0.75 * (counts[v] > 0) - 0.25 * counts[v] for v in range(VOCAB)])
        assert torch.allclose(actual[i], row - penalty, atol=1e-6)


def test_all_three_penalties_together() -> None:
    """A bias first, which may be a whole number, then the repetition penalty, then the two that subtract."""
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 2.0}
    params = SamplingParams(**penalties, logit_bias={0: -2, 3: 1})
    logits = torch.tensor([[4.0, -4.0, 4.0, -4.0]])
    adjusted = sampling.adjust(logits, params, sampling.token_counts([0, 1], [1, 1, 2], [], logits))
    assert adjusted.tolist() == [[1.0, -8.0 - 0.5 - 0.5, 2.0 - 0.5 - 0.25, -3.0]]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for top_p, num_kept in ((0.01, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3)):
        filtered = sampling.log_probs(scores, SamplingParams(top_p=top_p))
        assert filtered.isfinite().tolist() == [[index < num_kept for index in range(4)]]


def test_extreme_temperatures_stay_finite_and_those_too_small_to_divide_by_are_greedy() -> None:
    logits = 50.0 * random_logits()
    for temperature in (1e-5, 1e-3, 100.0):
        probs = sampling.log_probs(logits, SamplingParams(temperature=temperature)).exp()
        assert torch.allclose(probs.sum(-1), torch.ones(4))
        assert torch.equal(probs.argmax(-1), logits.argmax(-1))
    assert SamplingParams(temperature=1e-40).greedy
    assert choose_alone(logits, SamplingParams(temperature=1e-40), 1, 0).token_ids == logits.argmax(-1).tolist()


def test_shared_noise_samples_the_filtered_law() -> None:
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0, -2.0])
    params = SamplingParams(temperature=1.5, top_k=4, min_p=0.3)
    rows = logits.expand(30_000, -1)
    chosen = choose_alone(rows, params, 11, 0).token_ids
    kept = (logits[:4] / 1.5).softmax(-1)
    assert (kept >= 0.3 * kept.max()).tolist() == [True, True, True, False]
    law = dict(enumerate((logits[:3].double() / 1.5).softmax(-1).tolist()))
    assert p_value(Counter(chosen), law) > 1e-3


def weights_of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_sample_weights_is_the_inverse_of_the_cumulative_sum() -> None:
    weights = [0.0, 3.0, 0.0, 1.0, 4.0, 0.0]
    for step in range(1, 256):
        uniform = step / 256
        expected = bisect_right(list(accumulate(weights)), uniform * 8.0)
        assert sampling.sample_weights(weights_of(*weights), uniform) == expected
        assert weights[expected] > 0


def test_an_index_without_weight_is_never_sampled() -> None:
    """Not before the first weight, not behind the last one, not where rounding reaches the total itself."""
    for uniform in (2.0**-53, 0.5, LAST_UNIFORM, 1.0):
        assert sampling.sample_weights(weights_of(0.0, 0.0, 0.7, 0.0, 0.0), uniform) == 2
        assert sampling.sample_weights(weights_of(0.3), uniform) == 0
    weights = weights_of(0.0, 1e-3, 0.9, 0.1, 1e-3, 0.0)
    assert sampling.sample_weights(weights, 2.0**-53) == 1
    assert sampling.sample_weights(weights, LAST_UNIFORM) == 4
    wide = torch.full((150_000,), 0.1, dtype=torch.float64)
    assert sampling.sample_weights(wide, LAST_UNIFORM) == 149_999
