"""Near ties: no movement of logits within rounding changes a token without one, and few rows have one."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from specgate.runtime import noise
from specgate.runtime.barred import Barred
from specgate.runtime.batch_sampler import Answer, Prefix, SampledRows, SamplingStep, answers
from specgate.runtime.filters import NEAR_TIE
from specgate.types import SamplingParams
from tests.support.choices import choose_alone

ROUNDING = 0.98 * NEAR_TIE / 2
"""How far a logit goes. Two that go apart stay within the bound, with the error of float32."""
NUM_SEEDS = 40
SMALL = {
    # Rows in which a filter hardly leaves the last token out, and what makes it stay.
    "top_k": ([2.0, 1.0, 1.0 - 1e-6], [0.0, 0.0, 2e-6], {"top_k": 2}),
    "top_p": ([math.log(p) for p in (0.5, 0.3, 0.2)], [-2e-6, 0.0, 0.0], {"top_p": 0.8 - 1e-7}),
    # Of equal ones top-k keeps all or few, and what top-p keeps of the others follows.
    "both": ([1.0, 0.9, *[0.5] * 100], [0.0, 0.0, 2e-6, *[0.0] * 99], {"top_k": 3, "top_p": 0.02}),
    "min_p": ([0.0, *[math.log(0.5) - 1e-6] * 9], [-2e-6, *[0.0] * 9], {"min_p": 0.5}),
}


def chosen_of(logits: torch.Tensor, params: SamplingParams, **fields: Any) -> SampledRows:
    """A session without penalties shares the step."""
    other = SamplingStep(replace(params, repetition_penalty=1.0), 3, 0, logits.shape[-1])
    _, answer = answers([logits, logits], [other, other._replace(params=params, **fields)])
    assert isinstance(answer, Answer)
    assert answer.sampled is not None
    return answer.sampled


@pytest.mark.parametrize("name", SMALL)
def test_a_token_that_a_filter_lets_in_by_rounding_is_a_near_tie(name: str) -> None:
    logits, moved, filters = SMALL[name]
    rows = torch.tensor([logits]), torch.tensor([logits]) + torch.tensor([moved])
    outcomes = [[choose_alone(row, SamplingParams(**filters), seed) for row in rows] for seed in range(NUM_SEEDS)]
    changed = [(one, other) for one, other in outcomes if one.token_ids != other.token_ids]
    counted = [one.near_ties == other.near_ties == [True] for one, other in changed]
    print(f"{name}: {len(changed)} of {NUM_SEEDS} changed, {sum(counted)} counted")
    assert len(changed) > NUM_SEEDS // 10
    assert all(counted)


@pytest.mark.parametrize(("temperature", "bound"), [(4.0, 1e-4), (1.0, 1e-4), (0.5, 2e-4), (0.1, 1e-3)])
def test_two_scores_are_as_close_as_rounding_of_logits_brings_them(temperature: float, bound: float) -> None:
    params = SamplingParams(temperature=temperature)
    first, second = noise.gumbel(SamplingStep(params, 3, 0, 2).noise_keys(1), torch.arange(2))[0].tolist()
    leads = {0.95 * bound: True, 1.05 * bound: False}
    for lead, is_near in leads.items():
        logits = torch.tensor([[temperature * (lead + second - first), 0.0]])
        assert chosen_of(logits, params) == ([0], [is_near], [])


LEVELS = (3.0, 2.6, 2.6, 2.2, 2.2, 2.2, *(1.8, 1.4, 1.0, 0.2) * 4)
MASS = list(accumulate(map(math.exp, LEVELS)))
EDGES = [
    {"top_k": 4},
    {"top_p": MASS[4] / MASS[-1]},
    {"top_p": MASS[2] / MASS[-1]},
    {"min_p": math.exp(2.2 - 3.0)},
    {"top_k": 5, "top_p": MASS[3] / MASS[4]},
    {"top_k": 4, "top_p": MASS[2] / MASS[3], "min_p": math.exp(2.6 - 3.0)},
]


@pytest.mark.parametrize("filters", EDGES)
@pytest.mark.parametrize(("temperature", "penalty"), [(1.0, 1.0), (0.1, 1.0), (0.5, 0.5)])
def test_no_token_changes_without_a_near_tie(filters: Mapping[str, Any], temperature: float, penalty: float) -> None:
    """Rows whose filters cut where tokens lie side by side, each moved at random within rounding."""
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty, **filters)
    generator = torch.Generator().manual_seed(7)
    order = torch.rand(300, len(LEVELS), generator=generator).argsort(-1)
    logits = temperature * penalty * torch.tensor(LEVELS)[order]
    logits += 2.4 * NEAR_TIE * (torch.rand(logits.shape, generator=generator) - 0.5)
    # A penalty below 1 makes logits, and their rounding, larger.
    prefix = Prefix(range(len(LEVELS)), (), [0] * (len(logits) - 1)) if params.has_penalties else None
    before, changed = chosen_of(logits, params, prefix=prefix), set()
    for _ in range(12):
        move = ROUNDING * torch.randint(-1, 2, logits.shape, generator=generator)
        after = chosen_of(logits + move, params, prefix=prefix)
        for row, ids in enumerate(zip(before.token_ids, after.token_ids, strict=True)):
            if ids[0] != ids[1]:
                changed.add(row)
                assert before.near_ties[row]
                assert after.near_ties[row]
    assert len(changed) > 40
    assert sum(before.near_ties) < 2 * len(changed)


def test_near_ties_stay_rare_with_filters() -> None:
    logits = 3.0 * torch.randn(20_000, 200, generator=torch.Generator().manual_seed(7))
    filters = {"top_k": 50, "top_p": 0.9, "min_p": 0.05}
    laws = {"none": {}, **{name: {name: value} for name, value in filters.items()}, "all": filters}
    counts = {name: sum(chosen_of(logits, SamplingParams(**law)).near_ties) for name, law in laws.items()}
    print(f"near ties of {len(logits)} rows: {counts}")
    assert max(counts.values()) < len(logits) * 1e-3


@pytest.mark.parametrize("filters", [{"min_p": 1.0}, {"top_p": 0.9999}])
def test_where_a_filter_keeps_one_token_or_all_there_is_no_edge(filters: Mapping[str, Any]) -> None:
    assert not any(chosen_of(torch.tensor([[-1.0, -2.0, -1.5]] * NUM_SEEDS), SamplingParams(**filters)).near_ties)


def test_what_may_not_be_chosen_ties_with_nothing() -> None:
    row, _, filters = SMALL["top_k"]
    params, logits = SamplingParams(**filters, top_p=0.9999), torch.tensor([row]).expand(NUM_SEEDS, -1)
    bits = torch.full((NUM_SEEDS, 1), 0b011, dtype=torch.uint8)
    barred = Barred((2,), NUM_SEEDS)
    assert any(chosen_of(logits, params).near_ties)
    assert not any(chosen_of(logits, params, allowed=lambda: bits).near_ties)
    assert not any(chosen_of(logits, params, barred=barred).near_ties)
