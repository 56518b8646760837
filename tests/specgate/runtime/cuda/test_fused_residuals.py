"""Additions that are one with the norm behind them: the same logits, and other layers are left alone."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specgate.runtime import norms
from specgate.runtime.cuda.fused_layers import fuse_with
from specgate.runtime.norms import fuse_norms
from tests.support import torch_elementwise

SMALL: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 12,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
IDS = torch.arange(11)[None]


def made(kind: Any, config: Any) -> Any:
    torch.manual_seed(1)
    model = kind(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.uniform_(0.5, 1.5)
    return model


def fused(model: Any) -> Any:
    fuse_norms(model)
    fuse_with(model, torch_elementwise)
    return model


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig),
        (Qwen3ForCausalLM, Qwen3Config),
        (Phi3ForCausalLM, Phi3Config),
        (GraniteForCausalLM, GraniteConfig),
    ],
)
@torch.inference_mode()
def test_layers_of_this_form_are_fused_and_compute_the_same(kind: Any, config: Any) -> None:
    expected = made(kind, config(**SMALL))(IDS).logits
    model = fused(made(kind, config(**SMALL)))
    assert ["forward" in vars(layer) for layer in model.model.layers] == [True] * 3
    for _ in range(2):
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SMALL)),
        (Olmo2ForCausalLM, Olmo2Config(**SMALL)),
        (GraniteForCausalLM, GraniteConfig(**SMALL, residual_multiplier=0.5)),
    ],
)
@torch.inference_mode()
def test_layers_of_another_form_are_left_alone(kind: Any, config: Any) -> None:
    expected = made(kind, config)(IDS).logits
    model = fused(made(kind, config))
    assert not any("forward" in vars(layer) for layer in model.model.layers)
    torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_layer_that_is_left_out_leaves_no_norm_of_it_behind() -> None:
    whole = made(LlamaForCausalLM, LlamaConfig(**SMALL))
    del whole.model.layers[1]
    expected = whole(IDS).logits
    model = fused(made(LlamaForCausalLM, LlamaConfig(**SMALL)))
    model(IDS)
    del model.model.layers[1]
    torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_rows_of_another_layer_are_normed_anew() -> None:
    layers = fused(made(LlamaForCausalLM, LlamaConfig(**SMALL))).model.layers
    angles = torch.ones(1, 4, 12)
    rows = torch.randn(1, 4, 48)
    layers[0](rows, position_embeddings=(angles, angles))
    expected = made(LlamaForCausalLM, LlamaConfig(**SMALL)).model.layers[1].input_layernorm(rows)
    torch.testing.assert_close(layers[1].input_layernorm(rows), expected)


@torch.inference_mode()
def test_a_caller_who_does_not_name_what_he_hands_over_gets_the_layers_own() -> None:
    layer, own = (made(LlamaForCausalLM, LlamaConfig(**SMALL)).model.layers[2] for _ in range(2))
    angles, rows = torch.ones(1, 4, 12), torch.randn(1, 4, 48)
    fuse_norms(layer)
    fuse_with(nn.ModuleList([layer]), torch_elementwise)
    answers = [one(rows, None, None, None, False, (angles, angles)) for one in (layer, own)]
    torch.testing.assert_close(*answers)


class TellsMore(LlamaDecoderLayer):
    """Answers with a tuple, as layers did before transformers 4.54."""

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> Any:  # type: ignore[override]
        return (super().forward(hidden_states, **kwargs),)


def test_a_layer_that_answers_in_another_way_is_left_alone() -> None:
    layers = nn.ModuleList([TellsMore(LlamaConfig(**SMALL), 0)]).requires_grad_(False)
    fuse_norms(layers)
    fuse_with(layers, torch_elementwise)
    assert "forward" not in vars(layers[0])


@torch.inference_mode()
def test_weights_on_the_residual_stream_are_not_lost_in_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on CUDA: norms of all formats are torch's.
    monkeypatch.setattr(norms, "is_float32_on_cpu", lambda model: True)
    model = made(DogeForCausalLM, DogeConfig(**SMALL)).bfloat16()
    for layer in model.model.layers:
        layer.input_residual.fill_(1.0078125)
    assert not any("forward" in vars(layer) for layer in fused(model).model.layers)
