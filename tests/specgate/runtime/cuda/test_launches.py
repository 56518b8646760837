"""What a forward asks of a GPU, counted without one: the model, its pages and its graphs on ``meta`` tensors."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specgate.runtime.attention import interface
from specgate.runtime.attention.kernels import torch_varlen
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.fused_layers import fuse_with
from specgate.runtime.cuda.graphs import buckets_for
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.loading import LoadedModel
from specgate.runtime.norms import fuse_norms
from specgate.runtime.scheduler import Rows
from tests.support import torch_elementwise
from tests.support.counting import LaunchCount
from tests.support.models import quiet, skip_without_varlen
from tests.support.tape import EagerCapturer, one_operation

VOCAB, CONTEXT_LENGTH, PAGE_SIZE = 256, 512, 256
KERNELS_A_LAYER = 40
KERNELS_BESIDE_LAYERS = 23
KERNELS_A_FUSED_LAYER = 10
"""Budgets: launching a kernel takes longer than most of these run, so more of them is slower on every card."""


CONFIG = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": VOCAB, "max_position_embeddings": CONTEXT_LENGTH, "tie_word_embeddings": True,
}  # fmt: skip


def runner_of(model: torch.nn.Module, kernel: VarlenKernel) -> ModelRunner:
    one = next(model.parameters())
    loaded = LoadedModel(
        name="counted", model=model, dtype=one.dtype, device=one.device, vocab_size=VOCAB,
        context_length=CONTEXT_LENGTH, eos_token_ids=(), num_parameters=1,
    )  # fmt: skip
    return ModelRunner(loaded, 4096, PAGE_SIZE, kernel)


def llama(num_layers: int, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """Return a Llama with the paged attention set, and torch's norms."""
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**CONFIG, num_hidden_layers=num_layers)).to(dtype)
    interface.register()
    model.eval().requires_grad_(False).set_attn_implementation(interface.NAME)
    fuse_norms(model)
    return model


def runner_on_meta(num_layers: int) -> ModelRunner:
    """Return a Llama without numbers on its serving path, with torch's own varlen kernel: its signature is checked."""
    skip_without_varlen()
    model = llama(num_layers, "meta", torch.bfloat16)
    return runner_of(model, VarlenKernel(torch_varlen(), CONTEXT_LENGTH))


def kernels_of_fused(num_layers: int) -> int:
    """Return how many kernels a forward of 4 rows takes, of a Llama with all that is fused on a GPU."""
    model = llama(num_layers, "cpu", torch.float32)
    fuse_with(model, torch_elementwise)
    runner = runner_of(model, VarlenKernel(one_operation, CONTEXT_LENGTH, store=torch_elementwise.store))
    sequence = runner.pool.open(list(range(24)), 100)
    runner.pool.extend(sequence, 24)
    runner.forward([Rows(sequence, 20, 0)])
    with LaunchCount("cpu") as count:
        runner.forward([Rows(sequence, 4, 4)])
    return count.kernels.total()


def counted(num_layers: int) -> tuple[LaunchCount, LaunchCount]:
    """Return what a prefill of 19 tokens asks for, and a replay of 4 rows behind it."""
    runner = runner_on_meta(num_layers)
    sequence = runner.pool.open(list(range(20)), 100)
    runner.pool.extend(sequence, 26)
    with LaunchCount() as prefill:
        runner.forward([Rows(sequence, 19, 0)])
    runner.capture(buckets_for(4), EagerCapturer(), quiet)
    sequence.append([1, 2, 3])
    with LaunchCount() as replay:
        (logits,) = runner.forward([Rows(sequence, 4, 4)])
    assert logits.shape == (4, VOCAB)
    return prefill, replay


@pytest.fixture(scope="module")
def of_layers() -> dict[int, tuple[LaunchCount, LaunchCount]]:
    return {num_layers: counted(num_layers) for num_layers in (1, 3)}


Counted = dict[int, tuple[LaunchCount, LaunchCount]]


def test_a_forward_brings_all_its_inputs_in_one_copy_and_reads_nothing_from_the_device(of_layers: Counted) -> None:
    """With a graph and without one."""
    assert [(count.host_reads, count.transfers) for pair in of_layers.values() for count in pair] == [([], 1)] * 4


def test_the_kernels_of_a_layer_keep_to_their_budget(of_layers: Counted) -> None:
    one, three = (replay.kernels.total() for _, replay in of_layers.values())
    a_layer = (three - one) / 2
    assert a_layer == KERNELS_A_LAYER
    assert one - a_layer == KERNELS_BESIDE_LAYERS


def test_the_kernels_of_a_fused_layer_keep_to_their_budget() -> None:
    one, three = kernels_of_fused(1), kernels_of_fused(3)
    assert (three - one) / 2 == KERNELS_A_FUSED_LAYER


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_fork_copies_the_rows_of_all_layers_in_one_kernel(num_layers: int) -> None:
    runner = runner_on_meta(num_layers)
    sequence = runner.pool.open(list(range(20)), 100)
    runner.pool.extend(sequence, 20)
    runner.forward([Rows(sequence, 19, 0)])
    runner.resize(4096)
    trunk = runner.pool.open(list(range(20)), 100)
    runner.pool.extend(trunk, 20)
    runner.forward([Rows(trunk, 19, 0)])
    fork = runner.pool.fork(trunk)
    runner.pool.extend(fork, 20)
    copies = runner.pool.take_copies()
    assert len(copies) == 1
    with LaunchCount() as count:
        runner._pages.copy_rows(copies)  # what no caller sees
    assert count.kernels == {"copy_": 1}
