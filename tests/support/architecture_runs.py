"""Tiny random models of an architecture, brought to the serving path and compared with transformers' own forward.

Query and key weights are scaled up and every bias and norm is drawn at random, so that a soft-cap, a bias, a window or
a layer without rotary embedding that was left out would show.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from specgate.runtime import kv_pages
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.scheduler import Rows
from tests.support.architectures import Case
from tests.support.models import TOKENIZER_SIZE, eager_logits, eager_model, make_runner, write_model

# No divisor of the window or of a sequence's length, so that steps begin and end inside pages.
PAGE_SIZE = 20
_SCORES = re.compile(r"\.(q_proj|k_proj|q_b_proj|kv_b_proj|q_norm|k_norm|query_key_value|qkv_proj|c_attn)\.weight$")


class Difference(NamedTuple):
    """How far served logits are from the model's own, over all ``num_rows`` rows that were compared.

    Attributes:
        worst: relative Frobenius error of the worst answer.
        other_choices: rows whose greedy token is another one, by more than a rounding error.
    """

    worst: float
    other_choices: int
    num_rows: int


def write_case(case: Case, folder: Path) -> Path:
    """Write the model and a tokenizer; the model has a few padding rows more."""
    config = {"tie_word_embeddings": False, **case.config}
    write_model(folder, case.model_type, vocab_size=TOKENIZER_SIZE + 7, tokenizer=True, **config)
    _sharpen(folder / "model.safetensors")
    return folder


def _sharpen(file: Path) -> None:
    """Scale what makes attention's scores, and draw biases and norms, which are constant in a new model."""
    weights = load_file(file)
    generator = torch.Generator().manual_seed(7)
    for name, weight in sorted(weights.items()):
        if weight.ndim == 1:
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
        if _SCORES.search(name):
            weights[name] = 2 * weight + (weight.ndim == 1)
    save_file(weights, file, metadata={"format": "pt"})


def measure(folder: Path) -> Difference:
    """Load the product's way, self-check included, serve a mixed batch and compare every row with the eager model.

    Raises:
        SpecgateError: it is refused.
    """
    runner, eager = make_runner(folder, kv_tokens=1200, page_size=PAGE_SIZE), eager_model(folder)
    worst, other_choices, num_rows = 0.0, 0, 0
    for token_ids, logits in _traffic(runner):
        own = eager_logits(eager, [token_ids])[0, -len(logits) :, : runner.vocab_size]
        worst = max(worst, float((logits - own).norm() / own.norm()))
        chosen = own.gather(1, logits.argmax(-1, keepdim=True))[:, 0]
        other_choices += int((own.amax(-1) - chosen > 1e-3).sum())
        num_rows += len(logits)
    return Difference(worst, other_choices, num_rows)


def _traffic(runner: ModelRunner) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yield a sequence's tokens and the logits of its last rows: prefill in chunks, rounds, rollbacks, lone rows."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return torch.randint(TOKENIZER_SIZE, (count,), generator=generator).tolist()

    long, short, middle = sequences = [runner.pool.open(draw(n), 120) for n in (83, 5, 33)]
    yield from _step(runner, [Rows(long, 50, 1), Rows(short, 5, 5)])
    yield from _step(runner, [Rows(long, 33, 1), Rows(middle, 33, 33)])
    for rejected in (0, 2, 4):
        for sequence in sequences:
            sequence.truncate(len(sequence) - rejected)
            sequence.append(draw(5))
        yield from _step(runner, [Rows(s, n := len(s) - s.num_cached, n) for s in sequences])
    for sequence in (long, middle):
        sequence.append(draw(1))
    yield from _step(runner, [Rows(long, 1, 1), Rows(middle, 1, 1)])
    middle.append(draw(1))
    yield from _step(runner, [Rows(middle, 1, 1)])


def _step(runner: ModelRunner, batch: list[Rows]) -> list[tuple[list[int], torch.Tensor]]:
    for rows in batch:
        assert runner.pool.extend(rows.sequence, rows.sequence.num_cached + rows.num_rows)
    logits = runner.forward(batch)
    return [(_cached(rows.sequence), its) for rows, its in zip(batch, logits, strict=True)]


def _cached(sequence: kv_pages.KVSequence) -> list[int]:
    return sequence.token_ids[: sequence.num_cached]


def change_shows(folder: Path, change: dict[str, Any], token_ids: Sequence[int]) -> float:
    """Return by how much the same weights differ under a changed configuration, as a relative Frobenius error."""
    own = eager_logits(eager_model(folder), [token_ids])
    config = AutoConfig.from_pretrained(folder)
    for name, value in change.items():
        setattr(config, name, value)
    other = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return float((eager_logits(other, [token_ids]) - own).norm() / own.norm())
