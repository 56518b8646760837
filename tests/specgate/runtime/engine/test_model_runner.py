"""The ragged forward gives each sequence the logits that the model alone would give it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.errors import NonFiniteLogits, ResourceExhausted
from specgate.runtime.batch_sampler import check_finite
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.runtime.scheduler import Limits, Rows, logits_of
from tests.support.models import (
    TOKENIZER_SIZE,
    eager_logits,
    folders_of,
    make_runner,
    on,
    quiet,
    run_all,
    run_task,
    write_llama,
)
from tests.support.traffic import compare_with_eager

SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 8},
    "gpt2": {},
}

VOCAB = 64


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return folders_of(tmp_path_factory, ARCHITECTURES, VOCAB)


@pytest.fixture(scope="module")
def llama(folder_of: Callable[[str], Path]) -> ModelRunner:
    return make_runner(folder_of("llama"), kv_tokens=4096, page_size=64)


def test_it_tells_how_many_sequences_and_rows_shared_the_last_forward(llama: ModelRunner) -> None:
    sequences = [llama.pool.open((1, 2, 3), 8) for _ in range(3)]
    for sequence in sequences:
        llama.pool.extend(sequence, 3)
    llama.forward([Rows(sequence, 2, 2) for sequence in sequences[:2]])
    assert (llama.last_num_sequences, llama.last_num_rows) == (2, 4)
    llama.forward([Rows(sequences[0], 1, 1), Rows(sequences[2], 2, 0)])
    assert (llama.last_num_sequences, llama.last_num_rows) == (2, 0)
    llama.forward([Rows(sequences[1], 1, 1)])
    assert (llama.last_num_sequences, llama.last_num_rows) == (1, 1)
    for sequence in sequences:
        llama.pool.free(sequence)


def test_the_tiny_models_are_worth_testing_with(folder_of: Callable[[str], Path]) -> None:
    """Far from uniform, and the first token decides what comes after the last one."""
    for model_type in ARCHITECTURES:
        rest = list(range(5, 11))
        probs = eager_logits(folder_of(model_type), [[first, *rest] for first in (1, 2, 3, 4)])[:, -1].softmax(-1)
        assert probs.amax(-1).mean() > 5 / VOCAB, model_type
        assert (probs[0] - probs[1]).abs().sum() > 0.05, model_type


@pytest.mark.parametrize(
    ("model_type", "page_size"), [("llama", 512), ("llama", 16), ("gemma3_text", 16), ("gpt2", 64)]
)
def test_ragged_rows_equal_the_eager_model(model_type: str, page_size: int, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(model_type)
    compare_with_eager(make_runner(folder, 4096, page_size, packs=False), folder)


def test_stale_keys_would_be_noticed(llama: ModelRunner) -> None:
    """The comparison above can fail: one wrong key moves the logits by far more than it allows."""
    right = run_task(llama, logits_of(llama.pool.open(range(20), 20), 1))
    stale = llama.pool.open([*range(5), 50, *range(6, 20)], 20)
    run_task(llama, logits_of(stale, 1))
    stale.token_ids[5] = 5  # behind the cache's back
    stale.num_cached = 19
    assert not torch.allclose(right, run_task(llama, logits_of(stale, 1)), atol=1e-2)
    stale.truncate(20)
    stale.num_cached = 5
    assert torch.allclose(right, run_task(llama, logits_of(stale, 1)), atol=1e-4)


@pytest.mark.parametrize("chunk", [7, 16, 100])
def test_a_long_prompt_in_chunks_gives_the_same_logits(chunk: int, llama: ModelRunner) -> None:
    ids = [i * 7 % VOCAB for i in range(200)]
    limits = Limits(lone_chunk=chunk)
    logits = run_task(llama, logits_of(llama.pool.open(ids, len(ids)), 3), limits)
    expected = run_task(llama, logits_of(llama.pool.open(ids, len(ids), salt="apart"), 3))
    assert torch.allclose(logits, expected, atol=1e-3)


@pytest.mark.parametrize("num_logits", [1, 5])
def test_logits_of_what_is_cached_already_are_made_again(num_logits: int, llama: ModelRunner) -> None:
    """As after a rollback to a token that has been through the model."""
    sequence = llama.pool.open(range(20), 20)
    before = run_task(llama, logits_of(sequence, num_logits))
    again = run_task(llama, logits_of(sequence, num_logits))
    assert again.shape == before.shape == (num_logits, VOCAB)
    assert torch.allclose(again, before, atol=1e-4)
    llama.pool.free(sequence)


def test_padding_rows_of_the_vocabulary_are_cut_off(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, vocab_size=TOKENIZER_SIZE + 23, tokenizer=True)
    runner = make_runner(folder)
    logits = run_task(runner, logits_of(runner.pool.open([1, 2, 3], 8), 2))
    assert logits.shape == (2, TOKENIZER_SIZE)
    assert torch.allclose(logits, eager_logits(folder, [[1, 2, 3]])[0, -2:, :TOKENIZER_SIZE], atol=1e-4)


def test_pages_of_another_number_are_there_before_anything_runs(tmp_path: Path) -> None:
    runner = make_runner(write_llama(tmp_path), kv_tokens=1024, page_size=64)
    num_bytes = runner.kv_bytes_a_token
    runner.resize(640)
    assert (runner.pool.num_pages, runner.kv_bytes_a_token) == (10, num_bytes)
    with pytest.raises(ResourceExhausted, match="no memory for KV pages of 1125899906842624 tokens"):
        runner.resize(1 << 50)


def poison(runner: ModelRunner, token_id: int, value: float) -> None:
    runner.loaded.model.get_input_embeddings().weight.data[token_id] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_their_own_rows_alone(value: float, tmp_path: Path) -> None:
    """Nothing is run again for the others' sake, so a broken row must leave theirs as they are."""
    runner = make_runner(write_llama(tmp_path, vocab_size=VOCAB))
    alone = run_task(runner, logits_of(runner.pool.open([1, 2, 3], 8), 1))
    poison(runner, 9, value)
    healthy, sick = runner.pool.open([1, 2, 3], 8), runner.pool.open([1, 9, 3], 8)
    for sequence in (healthy, sick):
        runner.pool.extend(sequence, 3)
    logits = runner.forward([Rows(sick, 3, 1), Rows(healthy, 3, 1)])
    assert torch.allclose(logits[1], alone, atol=1e-5)
    with pytest.raises(NonFiniteLogits, match="NaN or infinite"):
        check_finite(logits)
    check_finite(logits[1:])


def test_a_token_that_is_banned_for_good_is_finite_enough(tmp_path: Path) -> None:
    """Some models answer -inf for ids that never occur; only a row without any finite logit is broken."""
    runner = make_runner(write_llama(tmp_path, vocab_size=VOCAB), packs=False)
    head = runner.loaded.model.lm_head
    head.register_forward_hook(lambda module, inputs, output: output.index_fill(-1, torch.tensor([7]), -torch.inf))
    logits = run_task(runner, logits_of(runner.pool.open([1, 2], 8), 1))
    assert logits[0, 7] == -torch.inf


def test_works_run_side_by_side_as_if_alone(llama: ModelRunner) -> None:
    """``run_all`` itself, which the session tests stand on."""
    prompts = [[1, 2, 3], [4] * 30, [5, 6]]
    together = run_all([on(llama, logits_of(llama.pool.open(ids, 32), 1)) for ids in prompts])
    for ids, logits in zip(prompts, together, strict=True):
        assert torch.allclose(logits, run_task(llama, logits_of(llama.pool.open(ids, 32), 1)), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
def test_the_gpu_gives_the_logits_of_the_cpu(model_type: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(model_type)
    runner = prepare(load(str(folder), torch.device("cuda"), torch.float32, quiet), 4096, 256, quiet)
    ids = [i * 5 % VOCAB for i in range(300)]
    logits = run_task(runner, logits_of(runner.pool.open(ids, 400), 4)).cpu()
    assert torch.allclose(logits, eager_logits(folder, [ids])[0, -4:], atol=1e-2)
