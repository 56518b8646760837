"""Which architectures are of Llama's form, what is said of others, and that what only seems so serves right."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from specgate.runtime.cpu.packing import panels_of
from specgate.runtime.decoder_form import NotOfThisForm, form_of
from specgate.runtime.engine.self_check import TOLERANCE
from tests.support.architecture_runs import measure, write_case
from tests.support.architectures import CASES
from tests.support.models import make_runner

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


def model_of(model_type: str, **config: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **config}))


@pytest.mark.parametrize(
    ("model_type", "config", "reason"),
    [
        ("gemma", {}, "its MLP gates by another function than SiLU"),
        ("gemma2", {}, "Gemma2DecoderLayer has post_feedforward_layernorm, pre_feedforward_layernorm"),
        ("phi3", {}, "Phi3DecoderLayer has resid_attn_dropout, resid_mlp_dropout"),
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "it is built in another way"),
        ("olmo2", {"num_key_value_heads": 4}, "Olmo2DecoderLayer has no input_layernorm"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "a layer does not rotate"),
        ("ministral3", {}, "its attention looks at positions by itself"),
        ("minimax_m2", {}, "it norms all heads together"),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "GptOssAttention has sinks"),
    ],
)  # fmt: skip
def test_others_are_told_why(model_type: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotOfThisForm, match=f"^{reason}$"):
        form_of(model_of(model_type, **config))


def widened(layer: nn.Linear, more_outputs: int = 0, more_inputs: int = 0) -> nn.Linear:
    return nn.Linear(layer.in_features + more_inputs, layer.out_features + more_outputs, bias=False)


@pytest.mark.parametrize(
    ("block", "name", "change"),
    [
        ("self_attn", "v_proj", {"more_outputs": 16}), ("self_attn", "q_proj", {"more_outputs": 4}),
        ("self_attn", "o_proj", {"more_inputs": 8}), ("self_attn", "k_proj", {"more_outputs": 8}),
        ("mlp", "up_proj", {"more_outputs": 16}), ("mlp", "down_proj", {"more_outputs": 16}),
    ],
)  # fmt: skip
def test_a_matrix_that_does_not_fit_is_found_before_anybody_computes(
    block: str, name: str, change: dict[str, int]
) -> None:
    """C looks at no shapes: it would write and read beside its memory."""
    model = model_of("llama")
    module = getattr(model.model.layers[1], block)
    setattr(module, name, widened(getattr(module, name), **change))
    with pytest.raises(NotOfThisForm, match=r"do not fit together|differ"):
        form_of(model)


def test_a_norm_of_another_width_is_found() -> None:
    model = model_of("llama")
    model.model.layers[0].input_layernorm.weight = nn.Parameter(torch.ones(24))
    with pytest.raises(NotOfThisForm, match="do not fit together"):
        form_of(model)


def test_what_only_seems_to_be_of_this_form_serves_layer_by_layer_over_panels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Granite has Llama's parts, and factors between them."""
    case = next(case for case in CASES if case.name == "Granite")
    folder = write_case(case, tmp_path)
    with caplog.at_level("WARNING"):
        runner = make_runner(folder)
    form_of(runner.loaded.model)
    assert "attention by decoder is not used: GraniteForCausalLM: logits over KV pages differ" in caplog.text
    assert runner.kernel.name == "sdpa"
    assert any(map(panels_of, runner.loaded.model.modules()))
    assert measure(folder).worst < TOLERANCE[torch.float32] / 10
