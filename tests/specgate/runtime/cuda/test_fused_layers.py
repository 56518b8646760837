"""Fused layers compute what the model's own do, and other layers are left alone: on a GPU, else in the interpreter."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from specgate.runtime.attention.varlen import copy_to_slots
from specgate.runtime.cuda import elementwise
from specgate.runtime.cuda.fused_layers import fuse_with
from specgate.runtime.norms import fuse_norms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.triton, *([pytest.mark.gpu] if DEVICE.type == "cuda" else [])]
SMALL: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


def made(kind: Any, config: Any) -> Any:
    torch.manual_seed(1)
    return kind(config).to(DEVICE).eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("kind", "config"), [(LlamaForCausalLM, LlamaConfig(**SMALL)), (Qwen2ForCausalLM, Qwen2Config(**SMALL))]
)
@torch.inference_mode()
def test_a_model_gives_the_same_logits(kind: Any, config: Any) -> None:
    model, ids = made(kind, config), torch.arange(11, device=DEVICE)[None]
    expected = model(ids).logits
    num_parameters = sum(one.numel() for one in model.parameters())
    fuse_norms(model)
    fuse_with(model, elementwise)
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
    # Twice: what stands for a layer keeps nothing.
    torch.testing.assert_close(model(ids[:, 3:]).logits, made(kind, config)(ids[:, 3:]).logits, rtol=1e-4, atol=1e-5)
    assert sum(one.numel() for one in model.parameters()) == num_parameters
    layer = model.model.layers[0]
    for module in (layer, layer.self_attn, layer.mlp, layer.self_attn.q_proj):
        assert "forward" in vars(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "module",
    [
        GemmaMLP(GemmaConfig(**SMALL, hidden_act="gelu_pytorch_tanh")),
        LlamaMLP(LlamaConfig(**SMALL, hidden_act="relu")),
        nn.Linear(3, 3),
    ],
)
def test_what_computes_something_else_is_left_alone(module: nn.Module, dtype: torch.dtype) -> None:
    fuse_with(module.to(DEVICE, dtype).requires_grad_(False), elementwise)
    assert "forward" not in vars(module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_formats_are_fused_too(dtype: torch.dtype) -> None:
    layer = made(LlamaForCausalLM, LlamaConfig(**SMALL)).to(dtype).model.layers[0]
    fuse_with(layer, elementwise)
    assert "forward" in vars(layer.mlp)
    assert "forward" in vars(layer.self_attn)


def test_a_part_of_each_head_that_is_turned_is_left_to_the_model() -> None:
    partial = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    config = Phi3Config(**SMALL, pad_token_id=0, **partial)
    model, ids = made(Phi3ForCausalLM, config), torch.arange(11, device=DEVICE)[None]
    expected = model(ids).logits
    fuse_with(model, elementwise)
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_where_there_is_no_compiler_the_model_stays_as_it_is() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    layer = made(LlamaForCausalLM, LlamaConfig(**SMALL)).model.layers[0]
    fuse_with(layer, SimpleNamespace(rotated=fails, silu_times=fails, add_rms_norm=fails))
    assert "forward" not in vars(layer.mlp)
    assert "forward" not in vars(layer.self_attn)


def test_parts_of_one_product_may_be_asked_for_in_any_order() -> None:
    model = made(LlamaForCausalLM, LlamaConfig(**SMALL))
    attention, rows = model.model.layers[0].self_attn, torch.randn(1, 3, 48, device=DEVICE)
    layers = (attention.v_proj, attention.q_proj, attention.k_proj)
    expected = [layer(rows) for layer in layers]
    fuse_with(model, elementwise)
    for _ in range(2):
        for layer, one in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer(rows), one)
    other = torch.randn(1, 3, 48, device=DEVICE)
    assert not torch.allclose(layers[1](other), expected[1])


@pytest.mark.parametrize("width", [48, 64, 5000])
def test_a_sum_and_its_norm_are_one_kernel(width: int) -> None:
    hidden, added = (torch.randn(1, 5, width, device=DEVICE) for _ in range(2))
    weight = torch.rand(width, device=DEVICE)
    summed, normed = elementwise.add_rms_norm(hidden, added, weight, 1e-5)
    assert torch.equal(summed, hidden + added)
    torch.testing.assert_close(normed, F.rms_norm(hidden + added, [width], weight, 1e-5))


def test_keys_and_values_are_written_where_they_belong() -> None:
    key, value = (torch.randn(1, 5, 2, 24, device=DEVICE).transpose(1, 2) for _ in range(2))
    slots = torch.tensor([7, 0, 31, 8, 2], device=DEVICE)
    pages = [torch.zeros(4, 8, 2, 24, device=DEVICE) for _ in range(4)]
    elementwise.store(key, value, pages[0], pages[1], slots)
    copy_to_slots(key, value, pages[2], pages[3], slots)
    assert torch.equal(pages[0], pages[2])
    assert torch.equal(pages[1], pages[3])
