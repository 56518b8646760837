"""Sampling: the same numbers as transformers' own processors, row for row, each row with its own prefix."""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate

import pytest
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
NO_PREFIX = torch.zeros(1, 0, dtype=torch.long)


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


ONE_BY_ONE = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=2.5),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7),
    SamplingParams(top_k=VOCAB),
    SamplingParams(top_k=VOCAB + 5),
    SamplingParams(top_p=0.05),
    SamplingParams(top_p=0.6),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.02),
    SamplingParams(min_p=0.3),
    SamplingParams(min_p=1.0),
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(repetition_penalty=0.6),
    SamplingParams(logit_bias={3: 4.0, 11: -100.0, 12: 0.5}),
]
TOGETHER = [
    SamplingParams(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0.5, min_p=0.1),
    SamplingParams(temperature=2.0, min_p=0.3),
    SamplingParams(temperature=1.4, top_p=0.9, repetition_penalty=1.3, logit_bias={0: 5.0, 7: -3.0}),
    SamplingParams(top_k=12, min_p=0.1, repetition_penalty=0.8, logit_bias={39: 2.0}),
]


@pytest.mark.parametrize("params", [*ONE_BY_ONE, *TOGETHER])
def test_rows_equal_those_of_transformers(params: SamplingParams) -> None:
    """Row i of a verification has seen the output and i draft tokens, each counted once."""
    prompt, output, draft = [1, 2, 3, 3], [3, 5, 7, 5], [8, 3, 8]
    logits = random_logits(len(draft) + 1)
    counts = sampling.token_counts(prompt, output, draft, logits) if params.has_penalties else None
    actual = sampling.log_probs(sampling.adjust(logits, params, counts), params)
    for i, row in enumerate(logits):
        expected = reference(params, [*prompt, *output, *draft[:i]], row)
        assert torch.equal(actual[i].isfinite(), expected.isfinite())
        assert torch.allclose(actual[i].exp(), expected.exp(), rtol=1e-5, atol=1e-7)


def test_presence_and_frequency_count_the_output_alone() -> None:
    params = SamplingParams(presence_penalty=0.75, frequency_penalty=-0.25)
    prompt, output, draft = [1, 2, 3, 3], [3, 5, 7, 5], [8, 3, 8]
    logits = random_logits(len(draft) + 1)
    actual = sampling.adjust(logits, params, sampling.token_counts(prompt, output, draft, logits))
    for i, row in enumerate(logits):
        counts = Counter([*output, *draft[:i]])
        penalty = torch.tensor([0.75 * (counts[v] > 0) - 0.25 * counts[v] for v in range(VOCAB)])
        assert torch.allclose(actual[i], row - penalty, atol=1e-6)


def test_all_three_penalties_together() -> None:
    """The repetition penalty first, on the logits as they came; then the two that subtract."""
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0)
    logits = torch.tensor([[4.0, -4.0, 4.0, -4.0]])
    adjusted = sampling.adjust(logits, params, sampling.token_counts([0, 1], [1, 1, 2], [], logits))
    assert adjusted.tolist() == [[2.0, -8.0 - 0.5 - 0.5, 2.0 - 0.5 - 0.25, -4.0]]


def test_counts_have_one_row_for_every_prefix_of_the_draft() -> None:
    counts = sampling.token_counts([0, 0, 1], [2, 2], [3, 2], torch.zeros(1, 5))
    assert counts.in_prompt.tolist() == [[True, True, False, False, False]] * 3
    assert counts.in_output.tolist() == [[0, 0, 2, 0, 0], [0, 0, 2, 1, 0], [0, 0, 3, 1, 0]]


def test_no_output_and_no_draft_is_one_row() -> None:
    counts = sampling.token_counts([4], [], [], torch.zeros(1, 5))
    assert counts.in_output.tolist() == [[0] * 5]


def test_whole_numbers_are_biases_too() -> None:
    assert sampling.adjust(torch.zeros(1, 2), SamplingParams(logit_bias={1: 2}), None).tolist() == [[0.0, 2.0]]


def test_adjust_leaves_its_input_alone() -> None:
    logits = random_logits()
    before = logits.clone()
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, logit_bias={1: 3.0})
    sampling.adjust(logits, params, sampling.token_counts([1], [2], [3, 4, 5], logits))
    assert torch.equal(logits, before)


def test_bfloat16_logits_are_worked_on_in_float32() -> None:
    logits = random_logits().bfloat16()
    assert sampling.adjust(logits, SamplingParams(), None).dtype == torch.float32
    assert sampling.raw_log_probs(logits).dtype == torch.float32


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, {0}), (0.5, {0}), (0.51, {0, 1}), (0.75, {0, 1}), (0.76, {0, 1, 2})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    probs = torch.tensor([[0.5, 0.25, 0.15, 0.1]])
    filtered = sampling.log_probs(probs.log(), SamplingParams(top_p=top_p))
    assert set(filtered[0].isfinite().nonzero().flatten().tolist()) == kept


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = 50.0 * random_logits()
    probs = sampling.log_probs(logits, SamplingParams(temperature=temperature)).exp()
    assert torch.allclose(probs.sum(-1), torch.ones(4))
    assert torch.equal(probs.argmax(-1), logits.argmax(-1))


def test_temperatures_too_small_to_divide_by_are_greedy() -> None:
    assert SamplingParams(temperature=1e-40).greedy
    choice = choose_alone(random_logits(), SamplingParams(temperature=1e-40), 1, 0)
    assert choice.token_ids == random_logits().argmax(-1).tolist()


def test_raw_log_probs_know_no_sampling_parameter() -> None:
    logits = random_logits()
    assert torch.equal(sampling.raw_log_probs(logits), logits.log_softmax(-1))


def test_shared_noise_belongs_to_the_position_not_to_the_batch() -> None:
    """What a position chooses is the same in a row of its own and among others."""
    logits, params = random_logits(32), SamplingParams()
    together = choose_alone(logits, params, 5, 100).token_ids
    alone = [choose_alone(row[None], params, 5, 100 + i).token_ids[0] for i, row in enumerate(logits)]
    assert together == alone
    assert together != choose_alone(logits, params, 6, 100).token_ids
    assert together != choose_alone(logits, params, 5, 101).token_ids


def test_shared_noise_samples_the_filtered_law() -> None:
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0, -2.0])
    params = SamplingParams(temperature=1.5, top_k=4, min_p=0.3)
    rows = logits.expand(30_000, -1)
    chosen = choose_alone(rows, params, 11, 0).token_ids
    kept = (logits[:4] / 1.5).softmax(-1)
    assert (kept >= 0.3 * kept.max()).tolist() == [True, True, True, False]
    law = dict(enumerate((logits[:3].double() / 1.5).softmax(-1).tolist()))
    assert p_value(Counter(chosen), law) > 1e-3


def test_greedy_has_no_noise() -> None:
    logits, params = random_logits(), SamplingParams(temperature=0.0)
    for seed in range(5):
        assert choose_alone(logits, params, seed, seed).token_ids == logits.argmax(-1).tolist()


def weights_of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_sample_weights_is_the_inverse_of_the_cumulative_sum() -> None:
    weights = [0.0, 3.0, 0.0, 1.0, 4.0, 0.0]
    for step in range(1, 256):
        uniform = step / 256
        expected = bisect_right(list(accumulate(weights)), uniform * 8.0)
        assert sampling.sample_weights(weights_of(*weights), uniform) == expected
        assert weights[expected] > 0


@pytest.mark.parametrize("uniform", [2.0**-53, 0.5, LAST_UNIFORM, 1.0])
def test_an_index_without_weight_is_never_sampled(uniform: float) -> None:
    """Not before the first weight, not behind the last one, not where rounding reaches the total itself."""
    assert sampling.sample_weights(weights_of(0.0, 0.0, 0.7, 0.0, 0.0), uniform) == 2
    assert sampling.sample_weights(weights_of(0.3), uniform) == 0


def test_the_ends_of_the_range_select_the_ends_of_the_support() -> None:
    weights = weights_of(0.0, 1e-3, 0.9, 0.1, 1e-3, 0.0)
    assert sampling.sample_weights(weights, 2.0**-53) == 1
    assert sampling.sample_weights(weights, LAST_UNIFORM) == 4
    wide = torch.full((150_000,), 0.1, dtype=torch.float64)
    assert sampling.sample_weights(wide, LAST_UNIFORM) == 149_999


def test_weights_need_not_be_normalised() -> None:
    weights = weights_of(0.2, 0.5, 0.3)
    for step in range(1, 50):
        expected = sampling.sample_weights(weights, step / 50)
        assert sampling.sample_weights(weights * 2.0**-20, step / 50) == expected
