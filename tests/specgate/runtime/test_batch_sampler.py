"""Choices of many sessions at once are, bit for bit, those of each session alone."""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from specgate.errors import NonFiniteLogits
from specgate.runtime import batch_sampler as choosing_module
from specgate.runtime.batch_sampler import Answer, Prefix, SampledRows, SamplingStep, answers
from specgate.types import SamplingParams
from tests.support.choices import by_the_rule, choose_alone
from tests.support.transfers import Transfers

VOCAB = 48
PARAMS = [
    *(SamplingParams(temperature=temperature) for temperature in (0.0, 1e-6, 1.0, 0.7)),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.25),
    SamplingParams(repetition_penalty=0.8, frequency_penalty=-0.5),
    SamplingParams(logit_bias={3: 2.0, 7: -100.0}),
    SamplingParams(temperature=0.0, logit_bias={3: 2.0}),
]


class Step(NamedTuple):
    """A forward's logits, task by task, and how they are to be chosen."""

    logits: list[torch.Tensor]
    asked: list[SamplingStep | None]


def random_logits(rng: random.Random, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits = 3.0 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
    for row in logits:
        if rng.random() < 0.4:  # a tie, or nearly one, for the first place
            best, other = row.max(), rng.randrange(VOCAB)
            row[other] = best - rng.choice([0.0, 0.0, 0.5e-4, 2e-4])
    return logits.to(dtype)


def random_choosing(rng: random.Random, rows: int, params: SamplingParams) -> SamplingStep:
    vocab_size = rng.choice([VOCAB, VOCAB, VOCAB - 7])
    prompt, output, draft = ([rng.randrange(vocab_size) for _ in range(n)] for n in (6, 4, rows - 1))
    seed, position = rng.getrandbits(64), rng.randrange(1000)
    prefix = Prefix(prompt, output, draft) if params.has_penalties else None
    return SamplingStep(params, seed, position, vocab_size, prefix, with_probs=rng.random() < 0.7)


def random_step(seed: int, dtype: torch.dtype = torch.float32) -> Step:
    """Up to 16 tasks: some have no rows yet, some want the logits alone, most choose, many of them alike."""
    rng = random.Random(seed)
    pool = rng.sample(PARAMS, rng.randint(1, 4))
    step = Step([], [])
    for rows in rng.choices([0, 1, 1, 1, 2, 4, 5], k=rng.randint(1, 16)):
        step.logits.append(random_logits(rng, rows, dtype))
        wants = rows > 0 and rng.random() < 0.85
        step.asked.append(random_choosing(rng, rows, rng.choice(pool)) if wants else None)
    return step


def expected_of(step: Step) -> list[SampledRows | None]:
    entries = zip(step.logits, step.asked, strict=True)
    return [None if choosing is None else by_the_rule(logits, choosing) for logits, choosing in entries]


def chosen_of(step: Step) -> list[SampledRows | None]:
    """Choose all at once; the tasks' logits are left alone."""
    before = [logits.clone() for logits in step.logits]
    found = [answer for answer in answers(step.logits, step.asked) if isinstance(answer, Answer)]
    assert all(one.logits is logits for one, logits in zip(found, step.logits, strict=True))
    assert all(map(torch.equal, step.logits, before))
    return [one.sampled for one in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_at_once_is_each_alone(dtype: torch.dtype) -> None:
    num_chosen = num_near = 0
    for seed in range(60):
        step = random_step(seed, dtype)
        expected = expected_of(step)
        assert chosen_of(step) == expected, seed
        num_chosen += sum(len(one.token_ids) for one in expected if one)
        num_near += sum(sum(one.near_ties) for one in expected if one)
    assert num_chosen > 500
    assert num_near > 30


@pytest.mark.parametrize("vocab_size", [4096, 50_257])
def test_wide_rows_too(vocab_size: int) -> None:
    """Widths at which they are chosen in several passes, and torch cuts its work differently for one row and many."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = list(torch.randn(9, vocab_size, generator=generator).split([1, 4, 1, 3]))
    filtered = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
    penalised, biased = SamplingParams(presence_penalty=2.0), SamplingParams(logit_bias={5: 9.0})
    one_apart = [PARAMS[2], *PARAMS[4:7]]
    for laws in ([PARAMS[0]] * 4, [filtered] * 4, one_apart, [PARAMS[2], penalised, biased, penalised]):
        prefixes = [Prefix([1], [5], [5] * (len(rows) - 1)) for rows in logits]
        asked: list[SamplingStep | None] = [
            SamplingStep(params, i, 7, vocab_size, prefixes[i] if params.has_penalties else None, with_probs=True)
            for i, params in enumerate(laws)
        ]
        assert chosen_of(Step(logits, asked)) == expected_of(Step(logits, asked))


# What mixes rows up inside can be broken only inside.


def _one_position_off(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda entry: real(entry._replace(step=entry.step and entry.step._replace(position=1)))


def _in_reverse(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda table, order, *others: real(table, reversed(list(order)), *others)


def _all_alike(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda entry: None if real(entry) is None else entry.step is None


def _raw_for_all(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *law: real(*law)._replace(unweighed=True)


MUTANTS = {"_keys": _one_position_off, "_hand_out": _in_reverse, "_kind": _all_alike, "_Law": _raw_for_all}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_mixes_rows_up_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [random_step(seed) for seed in range(20)]
    expected = [expected_of(step) for step in steps]
    monkeypatch.setattr(choosing_module, name, MUTANTS[name](getattr(choosing_module, name)))
    assert any(_differs(step, right) for step, right in zip(steps, expected, strict=True))


def _differs(step: Step, expected: list[SampledRows | None]) -> bool:
    try:
        return chosen_of(step) != expected
    except (ValueError, RuntimeError, AssertionError):
        return True


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_is_its_own_tasks_alone(value: float) -> None:
    broken = 0
    for seed in range(40):
        step = random_step(seed)
        expected = expected_of(step)
        sick = random.Random(seed).randrange(len(step.logits))
        if not len(step.logits[sick]):
            continue
        step.logits[sick][-1, 2] = value
        found = answers(step.logits, step.asked)
        assert isinstance(found[sick], NonFiniteLogits)
        others = [i for i in range(len(found)) if i != sick]
        assert [found[i].sampled for i in others] == [expected[i] for i in others]
        broken += 1
    assert broken > 10


def test_a_row_of_nothing_but_minus_infinity_is_broken() -> None:
    for asked in (None, SamplingStep(PARAMS[0], 1, 1, VOCAB), SamplingStep(SamplingParams(), 1, 1, VOCAB)):
        logits = torch.zeros(2, VOCAB)
        logits[0, 1:] = -torch.inf  # ids that never occur are fine, as long as there is one that does
        assert isinstance(answers([logits], [asked])[0], Answer)
        logits[0, 0] = -torch.inf
        assert isinstance(answers([logits], [asked])[0], NonFiniteLogits)


def test_a_step_is_one_transfer_however_many_choose() -> None:
    """Penalties are counted without waiting for the device, too."""
    for step in [random_step(seed) for seed in range(40)]:
        with Transfers() as transfers:
            answers(*step)
        assert transfers.num == any(map(len, step.logits))
    assert answers([], []) == []


def test_two_scores_that_are_close_are_a_near_tie_and_a_lone_survivor_is_none() -> None:
    # 0.5 and not 1: the gap must survive in float32.
    scores = torch.tensor([[0.0, 0.5, 0.5 + gap, -torch.inf] for gap in (0.0, 0.9e-4, 1.1e-4, 1.0)])
    assert choose_alone(scores, PARAMS[0]).near_ties == [True, True, False, False]
    scores = torch.tensor([[-torch.inf, 3.0], [0.0, -torch.inf]])
    assert choose_alone(scores, PARAMS[0]) == ([1, 0], [False, False], [])
    assert choose_alone(torch.zeros(2, 1), PARAMS[0]) == ([0, 0], [False, False], [])
    # Of equal scores the first is chosen, as transformers does.
    assert choose_alone(torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0] * 4]), PARAMS[0]) == ([1, 0], [True, True], [])


@pytest.mark.parametrize("params", PARAMS)
def test_what_a_mask_forbids_has_no_logit_for_that_task_alone(params: SamplingParams) -> None:
    rng = random.Random(5)
    logits = [random_logits(rng, 3, torch.bfloat16) for _ in range(2)]
    plain, asked = (random_choosing(rng, 3, params) for _ in range(2))
    rows = torch.randint(1, 256, (3, VOCAB // 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    allowed = torch.tensor([[bool(row[i // 8] >> i % 8 & 1) for i in range(VOCAB)] for row in rows.tolist()])
    by_hand = logits[1].masked_fill(~allowed, -torch.inf)
    first, second = answers(logits, [plain, asked._replace(allowed=lambda: rows)])
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert first.sampled == by_the_rule(logits[0], plain)
    assert second.sampled == by_the_rule(by_hand, asked)
    assert torch.equal(second.logits[:, : asked.vocab_size], by_hand[:, : asked.vocab_size])


def test_a_broken_logit_that_is_not_allowed_is_still_one_of_a_broken_model() -> None:
    logits, rows = torch.zeros(1, 8), torch.tensor([[0b11]], dtype=torch.uint8)
    logits[0, 1] = math.nan
    choosing = SamplingStep(SamplingParams(temperature=0.0), 1, 0, 8, with_probs=True, allowed=lambda: rows)
    (answer,) = answers([logits], [choosing])
    assert isinstance(answer, NonFiniteLogits)
