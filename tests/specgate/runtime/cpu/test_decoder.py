"""All layers in one call: logits are HuggingFace's own, whatever shares pages and forwards, and bad input is told."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specgate.errors import NonFiniteLogits
from specgate.runtime.batch_sampler import check_finite
from specgate.runtime.cpu.decoder import DecoderPages
from specgate.runtime.cpu.decoder_weights import Angles
from specgate.runtime.decoder_form import NotOfThisForm, form_of
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import Copy
from specgate.runtime.scheduler import Rows
from tests.support.architecture_runs import write_case
from tests.support.architectures import LLAMA_3, PLAIN, YARN, Case
from tests.support.models import eager_logits, make_runner, write_llama
from tests.support.traffic import compare_with_eager

WINDOWS = {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
LINEAR = {**PLAIN, "rope_type": "linear", "factor": 3.0}
CASES = [
    Case("Llama", "llama", {}, "grouped queries, untied head"),
    Case("odd sizes", "llama", {"hidden": 40, "head_dim": 6, "intermediate_size": 49, "num_key_value_heads": 1,
                                "tie_word_embeddings": True}, "one head of keys, odd widths, tied head"),
    Case("Llama 3", "llama", {"head_dim": 20, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA_3},
         "biases, heads that end inside a panel, scaled rotation"),
    Case("linear", "llama", {"num_key_value_heads": 4, "rope_parameters": LINEAR}, "scaled rotation, a key head each"),
    Case("Qwen2", "qwen2", {**WINDOWS, "rope_parameters": YARN}, "biases of queries, keys and values, windows, YaRN"),
    Case("Qwen3", "qwen3", {"tie_word_embeddings": True}, "norms of heads"),
    Case("Mistral", "mistral", {"sliding_window": 24}, "windows"),
]  # fmt: skip
PAGE_SIZES = [7, 20, 300]
TOLERANCE = 3e-5
"""Relative. By a forward in float64, each of both is up to 9e-6 off: these weights make attention sharp."""


def decoder_runner(folder: Path, kv_tokens: int, page_size: int) -> ModelRunner:
    """A self-check that finds the one call wrong would let another way serve."""
    runner = make_runner(folder, kv_tokens, page_size)
    assert runner.kernel.name == "decoder"
    return runner


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_huggingfaces_own(case: Case, tmp_path: Path) -> None:
    folder = write_case(case, tmp_path)
    for page_size in PAGE_SIZES:
        compare_with_eager(decoder_runner(folder, 3000, page_size), folder, TOLERANCE)


@pytest.mark.parametrize(
    ("page_size", "first", "end"), [(40, 0, 40), (40, 5, 9), (40, 14, 33), (20, 16, 20), (7, 2, 7)]
)
def test_copied_rows_are_the_same_in_their_new_page_and_others_stay(page_size: int, first: int, end: int) -> None:
    pages = DecoderPages(3, page_size, num_layers=2, kv_heads=2, head_dim=6)
    for stack in pages.stacks:
        stack.copy_(torch.randn(stack.shape))

    def rows(page: int) -> torch.Tensor:
        """Keys and values of one page by token, [layers, kv_heads, page_size, numbers]."""
        keys = pages.keys[:, page].transpose(-1, -2).flatten(2, 3)[:, :, :page_size]
        return torch.cat([keys, pages.values[:, page]], -1)

    before = [rows(page).clone() for page in range(3)]
    pages.copy_rows([Copy(source=2, target=0, first=first, end=end)])
    expected = before[0].clone()
    expected[:, :, first:end] = before[2][:, :, first:end]
    assert torch.equal(rows(0), expected)
    assert [torch.equal(rows(page), before[page]) for page in (1, 2)] == [True, True]


def fill(runner: ModelRunner, token_ids: list[int], num_logits: int) -> torch.Tensor:
    """Run a new sequence in one forward, and close it."""
    sequence = runner.pool.open(token_ids, len(token_ids))
    assert runner.pool.extend(sequence, len(token_ids))
    try:
        (logits,) = runner.forward([Rows(sequence, len(token_ids), num_logits)])
    finally:
        runner.pool.free(sequence)
    return logits


def test_positions_far_behind_the_first_ones(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, max_position_embeddings=4096)
    runner = decoder_runner(folder, 512, 64)
    runner.resize(2560)
    token_ids = [i * 7 % 64 for i in range(2500)]
    own = eager_logits(folder, [token_ids])[0, -3:]
    assert (fill(runner, token_ids, 3) - own).norm() < TOLERANCE * own.norm()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_session_leaves_others_their_bits_in_its_forward_and_on_its_pages(
    value: float, tmp_path: Path
) -> None:
    runner = decoder_runner(write_llama(tmp_path), 60, 20)
    healthy_ids, sick_ids = [1, 2, 3], [9] * 33
    alone = fill(runner, healthy_ids, 3)
    runner.loaded.model.get_input_embeddings().weight.data[9] = value
    healthy, sick = runner.pool.open(healthy_ids, 3, salt="one"), runner.pool.open(sick_ids, 33, salt="other")
    for sequence in (healthy, sick):
        assert runner.pool.extend(sequence, len(sequence))
    sick_logits, logits = runner.forward([Rows(sick, 33, 1), Rows(healthy, 3, 3)])
    assert torch.equal(logits, alone)
    with pytest.raises(NonFiniteLogits):
        check_finite([sick_logits])
    # Then on pages that the broken one filled: what it left lies behind the new rows, in the same panels.
    pages = set(sick.block_table)
    for sequence in (healthy, sick):
        runner.pool.release(sequence, poisoned=True)
    assert pages
    for _ in range(runner.pool.num_pages):
        sequence = runner.pool.open(healthy_ids, 3, salt="third")
        assert runner.pool.extend(sequence, 3)
        pages.difference_update(sequence.block_table)
        assert torch.equal(runner.forward([Rows(sequence, 3, 3)])[0], alone)
    assert not pages


@pytest.mark.parametrize(
    ("token_ids", "error"),
    [([1, 64], RuntimeError), ([1, -1], RuntimeError), ([1] * 41, RuntimeError), ([1] * 81, IndexError)],
)
def test_what_is_out_of_range_is_an_error_and_the_next_forward_is_right(
    token_ids: list[int], error: type[Exception], tmp_path: Path
) -> None:
    """Tokens, positions behind the context, rows behind a sequence's pages."""
    runner = decoder_runner(write_llama(tmp_path, max_position_embeddings=40), 160, 20)
    before = fill(runner, [1, 2, 3], 3)
    sequence = runner.pool.open(token_ids, len(token_ids))
    assert runner.pool.extend(sequence, min(80, len(token_ids)))
    with pytest.raises(error, match=r"out of range|rows up to 81 of 81 on 4 pages"):
        runner.forward([Rows(sequence, len(token_ids), 1)])
    assert torch.equal(fill(runner, [1, 2, 3], 3), before)


def test_heads_that_turn_in_part_are_refused() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **sizes))
    form = form_of(model)
    rotary: Any = form.rotary
    rotary.inv_freq = rotary.inv_freq[:2]
    with pytest.raises(NotOfThisForm, match="does not turn both halves of a head together"):
        Angles(form, 64)
