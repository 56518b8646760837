"""A compressed-tensors folder's model has the numbers that the library itself says, to the bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.cli.model_facts import ModelFacts, read_config
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.runtime.cpu.packing import bytes_of, pack_layers
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.scheduler import logits_of
from specgate.runtime.short_head import FILE, NEVER
from specgate.runtime.stored_weights import Codes, weight_of
from specgate_lab.peers.hf_baseline import load_model
from tests.support.compressed_folders import change_config, change_tensors, write_compressed
from tests.support.models import quiet, run_task, write_llama, write_model
from tests.support.stored_models import IDS, expect_alike, expect_same_numbers, load_cpu

SHAPE = {"hidden": 192, "vocab_size": 100, "eos_token_id": 2}
"""Rows of 192 and 384 inputs: three times a power of 2."""
GROUPS = {"strategy": "group", "group_size": 32}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "4 bits": ({"bits": 4}, 4),
    "4 bits, groups": ({"bits": 4, **GROUPS}, 4),
    "4 bits, uneven groups": ({"bits": 4, "strategy": "group", "group_size": 96}, 4),
    "4 bits, one scale": ({"bits": 4, "strategy": "tensor"}, 4),
    "4 bits, one scale, zero point": ({"bits": 4, "strategy": "tensor", "symmetric": False}, 4),
    "4 bits, zero points": ({"bits": 4, "symmetric": False}, 4),
    "4 bits, groups with zero points": ({"bits": 4, "symmetric": False, "scale_dtype": torch.float16, **GROUPS}, 4),
    "4 bits, scales in float32": ({"bits": 4, "scale_dtype": torch.float32, **GROUPS}, 8),
    "4 bits, float32 and zero points": ({"bits": 4, "symmetric": False, "scale_dtype": torch.float32}, 32),
    "8 bits": ({"bits": 8}, 8),
    "8 bits, groups with zero points": ({"bits": 8, "symmetric": False, **GROUPS}, 8),
    "8 bits, scales in float32": ({"bits": 8, "scale_dtype": torch.float32}, 8),
    "8 bits, tiny groups": ({"bits": 8, "strategy": "group", "group_size": 12}, 32),
    "int": ({"bits": 8, "kind": "int-quantized"}, 8),
    "int, one scale": ({"bits": 8, "kind": "int-quantized", "strategy": "tensor"}, 8),
    "int, zero points": ({"bits": 8, "kind": "int-quantized", "symmetric": False, "scale_dtype": torch.float16}, 8),
    "int, one scale, zero point": ({"bits": 8, "kind": "int-quantized", "symmetric": False, "strategy": "tensor"}, 8),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), **SHAPE)


@pytest.mark.parametrize("keeps_stored", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_the_library(case: str, keeps_stored: bool, source: Path, tmp_path: Path) -> None:
    told, bits = CASES[case]
    expected = write_compressed(tmp_path, source, **told)
    model = load_cpu(tmp_path, keeps_stored=keeps_stored).model
    expect_same_numbers(model, expected)
    expect_alike(model, expected)
    weight = weight_of(model.model.layers[0].mlp.down_proj)
    assert (weight.bits if isinstance(weight, Codes) else 32) == (bits if keeps_stored else 32)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_served_says_what_the_same_numbers_in_float32_say(case: str, tied: bool, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", tie_word_embeddings=tied, **SHAPE)
    write_compressed(tmp_path / "codes", source, ignore=(), embeds=tied, **CASES[case][0])
    loaded = [load_cpu(tmp_path / "codes", keeps_stored=stored) for stored in (False, True)]
    runners = [prepare(one, 4096, 512, quiet) for one in loaded]
    assert [one.kernel.name for one in runners] == ["decoder", "decoder"]
    found = [run_task(one, logits_of(one.pool.open(IDS, len(IDS)), 1)) for one in runners]
    assert torch.equal(*found)


@pytest.mark.parametrize("case", CASES)
def test_the_doctor_tells_what_they_take(case: str, source: Path, tmp_path: Path) -> None:
    write_compressed(tmp_path, source, **CASES[case][0])
    facts = ModelFacts.of_folder("target", tmp_path, read_config(tmp_path))
    model = load_cpu(tmp_path, keeps_stored=True).model
    assert facts.num_parameters == model.num_parameters()
    assert pack_layers(model)
    # The head's 100 outputs take seven panels of 16.
    assert facts.kept_bytes == pytest.approx(bytes_of(model), rel=0.02)


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_architectures_and_dtypes(dtype: torch.dtype, model_type: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", model_type, tie_word_embeddings=True, **SHAPE)
    expected = write_compressed(tmp_path / "codes", source, **GROUPS)
    loaded = load_cpu(tmp_path / "codes", dtype, keeps_stored=True)
    if dtype is torch.float32:
        expect_alike(loaded.model, expected)
    else:
        assert {one.dtype for one in loaded.model.parameters()} == {dtype}
        expect_same_numbers(loaded.model.float(), expected.to(dtype).float())
    assert loaded.eos_token_ids == (2,)


def test_a_head_in_codes_is_cut(source: Path, tmp_path: Path) -> None:
    expected = write_compressed(tmp_path, source, ignore=(), **GROUPS)
    (tmp_path / FILE).write_text(json.dumps({"token_ids": [3, 50, 99]}))
    tokens = torch.tensor([IDS])
    whole = expected(tokens).logits
    found = load_cpu(tmp_path, keeps_stored=True, drafts=True).model(tokens).logits
    torch.testing.assert_close(found[..., [3, 50, 99]], whole[..., [3, 50, 99]], rtol=1e-4, atol=1e-4)
    assert (found == NEVER).sum() == 97 * len(IDS)


def test_the_baseline_has_the_same_numbers(source: Path, tmp_path: Path) -> None:
    expected = write_compressed(tmp_path, source, **GROUPS)
    expect_same_numbers(load_model(str(tmp_path), "float32", torch.device("cpu")), expected)


def test_layers_cannot_be_left_out(source: Path, tmp_path: Path) -> None:
    write_compressed(tmp_path, source)
    with pytest.raises(InvalidArgument, match="quantised folder cannot be left out"):
        load_cpu(tmp_path, skip="skip.json")


def told(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what sets a field of a group's weights, of its group or of the whole."""

    def change(config: dict[str, Any]) -> None:
        whole = config["quantization_config"]
        group = whole["config_groups"]["group_0"]
        where, _, field = path.rpartition(".")
        {"": whole, "group": group, "weights": group["weights"]}[where][field] = value

    return change


ROUNDED = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "format": (told("format", "marlin-24"), "format is 'marlin-24'; read is 'pack-quantized', 'int-quantized'"),
    "bits": (told("weights.num_bits", 3), "num_bits is 3; read is 4, 8"),
    "type": (told("weights.type", "float"), "type is 'float'; read is 'int'"),
    "strategy": (told("weights.strategy", "block"), "strategy is 'block'; read is 'tensor', 'channel', 'group'"),
    "no group": (told("weights.group_size", None), "group_size is None with the strategy 'group'"),
    "group": (told("weights.group_size", 40), "group_size 40 does not divide .*'?s 192 inputs"),
    "dynamic": (told("weights.dynamic", True), "dynamic is True"),
    "order": (told("weights.actorder", "group"), "actorder is 'group'; read is None, False, 'weight', 'static'"),
    "activations": (told("group.input_activations", ROUNDED), "input_activations is .*; read is None"),
    "outputs": (told("group.output_activations", ROUNDED), "output_activations is .*; read is None"),
    "cache": (told("kv_cache_scheme", ROUNDED), "kv_cache_scheme is .*; read is None"),
    "sparsity": (told("sparsity_config", {"format": "sparse-24-bitmask"}), "sparsity_config is .*sparse-24-bitmask"),
    "transform": (told("transform_config", {"config_groups": {"u": {}}}), "transform_config is .*; read is None, {}"),
    "status": (told("quantization_status", "decompressed"), "quantization_status is 'decompressed'"),
    "groups": (told("config_groups", {"a": {}, "b": {}}), "config_groups is .*; read is a single group"),
    "preset": (told("config_groups", {"W4A16": ["Linear"]}), r"config_groups is \['Linear'\]; read is an object"),
    "other format": (told("group.format", "int-quantized"), "that of its group 'int-quantized'"),
    "unknown": (told("weights.rotation", 1), "weights has the field 'rotation', 1, which is not read"),
    "4 bits in bytes": (
        lambda config: (told("format", "int-quantized")(config), told("group.format", None)(config))[0],
        "num_bits is 4 in the format 'int-quantized'",
    ),
    "zero points that are not there": (told("weights.symmetric", False), "no tensor for .*weight_zero_point"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_fields_that_are_not_read_are_named(case: str, source: Path, tmp_path: Path) -> None:
    change, problem = CONFIGS[case]
    write_compressed(tmp_path, source, **GROUPS)
    change_config(tmp_path, change)
    with pytest.raises(ModelLoadError, match=problem):
        load_cpu(tmp_path)


UP = "model.layers.1.mlp.up_proj"
TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda all_: all_.pop(f"{UP}.weight_scale"), f"there is no tensor for {UP}.weight_scale"),
    "no codes": (lambda all_: all_.pop(f"{UP}.weight_packed"), f"there is no tensor for {UP}.weight"),
    "left over": (
        lambda all_: all_.update({f"{UP}.weight_g_idx": torch.zeros(192)}),
        f"{UP}.weight_g_idx has no place in LlamaForCausalLM",
    ),
    "shape": (
        lambda all_: all_.update({f"{UP}.weight_packed": torch.zeros(384, 23, dtype=torch.int32)}),
        r"weight_packed is \(384, 23\) in I32, where \(384, 24\) in I32 is needed",
    ),
    "dtype": (
        lambda all_: all_.update({f"{UP}.weight_scale": torch.zeros(384, 6, dtype=torch.float64)}),
        r"weight_scale is \(384, 6\) in F64, where \(384, 6\) in F32 or F16 or BF16 is needed",
    ),
    "stored shape": (
        lambda all_: all_.update({f"{UP}.weight_shape": torch.tensor([384, 191])}),
        r"weight_shape is not \(384, 192\)",
    ),
    "no number": (
        lambda all_: all_.update({f"{UP}.weight_scale": torch.full((384, 6), torch.nan)}),
        f"{UP}.weight_scale has numbers that are none",
    ),
    "norm in codes": (
        lambda all_: all_.update({"model.norm.weight_packed": torch.zeros(24, dtype=torch.int32)}),
        "model.norm.weight is stored in codes, and is of no plain product",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit_are_named(case: str, source: Path, tmp_path: Path) -> None:
    change, problem = TENSORS[case]
    write_compressed(tmp_path, source, **GROUPS)
    change_tensors(tmp_path, change)
    with pytest.raises(ModelLoadError, match=problem):
        load_cpu(tmp_path)


def test_an_index_names_files_beside_it_and_no_tensor_twice(source: Path, tmp_path: Path) -> None:
    write_compressed(tmp_path / "x", source, **GROUPS)
    weights, index = tmp_path / "x" / "model.safetensors", tmp_path / "x" / "model.safetensors.index.json"
    shutil.copy(weights, weights.with_name("again.safetensors"))
    shutil.copy(weights, tmp_path / "outside.safetensors")
    for files, problem in (
        ({"a": "../outside.safetensors"}, "in which file beside it"),
        ({"a": ["model.safetensors"]}, "in which file beside it"),
        ({"a": "model.safetensors", "b": "again.safetensors"}, "is in two files"),
    ):
        index.write_text(json.dumps({"weight_map": files}))
        with pytest.raises(ModelLoadError, match=problem):
            load_cpu(tmp_path / "x")
