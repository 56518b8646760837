"""A draft by our kernels, in Triton's interpreter: HuggingFace's tokens, the same bits whatever runs beside."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from specgate.runtime import noise
from specgate.runtime.noise import Purpose
from tests.specgate.runtime.cuda.decoder.drafts import NOISE, Draws, ids_of, prompts_of, same, write_tiny
from tests.support.models import eager_logits, eager_model

pytestmark = [pytest.mark.triton, pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted")]
STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def draws(folder: Path) -> Draws:
    draws = Draws.of(folder)
    draws.by_kernels()
    return draws


@pytest.mark.parametrize(("lengths", "rows"), [((9,), [1]), ((35, 9), [3, 2])])
def test_they_give_huggingfaces_tokens(draws: Draws, folder: Path, lengths: tuple[int, ...], rows: list[int]) -> None:
    prompts, model = prompts_of(*lengths), eager_model(folder)
    found = draws.draft(prompts, rows, STEPS)
    for prompt, ids, logits in zip(prompts, ids_of(found), found.logits, strict=True):
        own = eager_logits(model, [prompt + ids[:-1]])[0, -STEPS:]
        assert ids == own.argmax(-1).tolist()
        assert len(set(ids)) > 1
        assert (logits - own).norm() <= 1e-6 * own.norm()


def dot_by_rows(a: Any, b: Any, d: Any, *_: Any) -> TensorHandle:
    """Stands for the interpreter's dot, whose library rounds a row by where it lies in the block. A card does not."""
    found = np.stack([(row[:, None] * b.data).sum(0) for row in a.data]).astype(d.data.dtype)
    return TensorHandle(found + d.data, d.dtype.scalar)


def test_a_row_has_the_same_bits_whatever_else_is_in_its_forward(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter_builder, "create_dot", dot_by_rows)
    (prompt,), found = prompts_of(14), []
    for parts in ((1, 1, 1), (1, 2), (3,)):
        with draws.links([prompt], [3], NOISE, 1) as [link]:
            # What a narrower forward finds in the pages was written by these kernels, too.
            drafted = [
                draws.runner.draft([link.rows._replace(num_rows=num_rows)], [link.sample], 1) for num_rows in parts
            ]
        found.append(drafted[-1])
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_tokens_are_chosen_by_the_noise_of_python_among_those_there_are(draws: Draws) -> None:
    (prompt,), num_ids = prompts_of(9), 10
    with draws.links([prompt], [1], NOISE, STEPS) as [link]:
        choosing = link.sample._replace(vocab_size=num_ids, with_probs=True)
        drafted = draws.runner.draft([link.rows], [choosing], STEPS)
    for step, (token_id, logits) in enumerate(zip(ids_of(drafted)[0], drafted.logits[0], strict=True)):
        key = noise.row_key(choosing.seed, len(prompt) + step, Purpose.SHARED)
        gumbel = -np.log(-np.log([noise.uniform(key, counter) for counter in range(num_ids)]))
        scores = logits[:num_ids].numpy() / NOISE.temperature + gumbel
        assert token_id == scores.argmax()
        assert drafted.tables[0][step][1] == pytest.approx(scores.max(), rel=1e-6)
        assert drafted.tables[0][step][3] == pytest.approx(float(logits[:num_ids].softmax(-1)[token_id]), rel=1e-5)


def test_one_broken_logit_is_told(draws: Draws) -> None:
    head = draws.decoder.weights.head
    own = head[3].clone()
    try:
        head[3] = torch.nan
        ((_, score, *_),) = draws.draft(prompts_of(9), [1], 1).tables[0]
    finally:
        head[3] = own
    assert not np.isfinite(score)


def test_programs_of_a_phase_may_run_in_any_order(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, rows = prompts_of(12), [2]
    expected = draws.draft(prompts, rows, 2)
    own, order = interpreter_builder.set_grid_idx, random.Random(0)
    places: list[int] = []

    def shuffled(x: int, y: int, z: int) -> None:
        if x == 0:
            places[:] = order.sample(range(interpreter_builder.grid_dim[0]), interpreter_builder.grid_dim[0])
        own(places[x], y, z)

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", shuffled)
    assert same(draws.draft(prompts, rows, 2), expected)
    assert len(places) == 1
