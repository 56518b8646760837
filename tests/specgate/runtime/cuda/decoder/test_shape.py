"""Which decoders our kernels draft with, and what is said of others; how their weights are put together."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specgate.runtime.cuda.decoder.shape import shape_of
from specgate.runtime.cuda.decoder.weights import stack_weights
from specgate.runtime.decoder_form import DecoderForm, NotOfThisForm, form_of

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": None}  # fmt: skip
FLOAT32 = [torch.float32]


def model_of(model_type: str = "llama", **config: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **config}))


def left_out(form: DecoderForm) -> DecoderForm:
    return replace(form, layers=(replace(form.layers[0], mlp=None), *form.layers[1:]))


def test_the_shape_of_a_llama() -> None:
    shape = shape_of(form_of(model_of(rms_norm_eps=3e-5)), 256, 4, FLOAT32)
    assert shape[:9] == (32, 4, 2, 16, 48, 3, 64, 3e-5, 0.25)
    assert (shape.PAGE, shape.COLUMNS, shape.WIDTH, shape.num_rows) == (256, 4, 8, 64)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 5), (16, 2, 2), (32, 2, 2), (8, 8, 8)])
def test_a_sequence_has_rows_as_far_as_they_are_free(heads: int, kv_heads: int, width: int) -> None:
    model = model_of(hidden_size=4 * heads, num_attention_heads=heads, num_key_value_heads=kv_heads)
    assert width == shape_of(form_of(model), 256, 4, FLOAT32).WIDTH


@pytest.mark.parametrize(
    ("model_type", "config", "reason"),
    [
        ("llama", {"attention_bias": True}, "its products have biases"),
        ("llama", {"mlp_bias": True}, "its products have biases"),
        ("mistral", {"sliding_window": 24}, "its attention has a window"),
        ("qwen3", {}, "it norms each head"),
        ("llama", {"head_dim": 24}, "heads have 24 numbers, which is no power of 2 from 16 on"),
        ("llama", {"head_dim": 8}, "heads have 8 numbers"),
        ("llama", {"intermediate_size": 2049}, "products of 2049 columns, of 2048 at the most"),
        ("llama", {"hidden_size": 144, "num_attention_heads": 72, "head_dim": 32}, "products of 4096 columns"),
    ],
)
def test_what_else_there_is_is_told(model_type: str, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotOfThisForm, match=reason):
        shape_of(form_of(model_of(model_type, **config)), 256, 4, FLOAT32)


def test_other_number_formats_and_layers_with_holes_are_told() -> None:
    form = form_of(model_of())
    with pytest.raises(NotOfThisForm, match=r"its weights are in torch\.float32"):
        shape_of(form, 256, 4, [torch.bfloat16])
    form.layers[1].mlp.down.bfloat16()
    with pytest.raises(NotOfThisForm, match=r"its weights are in torch\.bfloat16, torch\.float32"):
        shape_of(form, 256, 4, [torch.bfloat16, torch.float32])
    with pytest.raises(NotOfThisForm, match="a block is left out"):
        shape_of(left_out(form), 256, 4, FLOAT32)


def test_layers_must_be_of_one_width() -> None:
    model = model_of()
    model.model.layers[1].mlp = model_of(intermediate_size=80).model.layers[1].mlp
    with pytest.raises(NotOfThisForm, match="its MLPs are of several widths"):
        shape_of(form_of(model), 256, 4, FLOAT32)


@torch.inference_mode()
def test_the_model_goes_on_with_weights_that_are_parts_of_stacks() -> None:
    model, ids = model_of(), torch.arange(9)[None]
    expected, form = model(ids).logits, form_of(model)
    weights = stack_weights(form, 40)
    assert model(ids).logits.equal(expected)
    layer = form.layers[1]
    assert layer.attention
    assert layer.mlp
    for stack, parts in (
        (weights.qkv[1], (layer.attention.query, layer.attention.key, layer.attention.value)),
        (weights.out[1], (layer.attention.out,)),
        (weights.gate_up[1], (layer.mlp.gate, layer.mlp.up)),
        (weights.down[1], (layer.mlp.down,)),
    ):
        place = stack.data_ptr()
        for part in parts:
            assert part.weight.data_ptr() == place
            place += part.weight.nbytes
        assert stack.data_ptr() + stack.nbytes == place
    assert weights.norms[2, 1].equal(form.layers[2].mlp_norm.weight)
    assert weights.angles.shape == (40, 2, 8)
