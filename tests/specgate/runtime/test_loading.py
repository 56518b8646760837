"""Loading: safetensors alone, no code from the folder, and what its files say of the model."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgate.errors import InvalidArgument, ModelLoadError
from specgate.runtime.loading import load, pick_device, pick_dtype
from tests.support.models import (
    END_OF_TEXT_ID,
    TOKENIZER_SIZE,
    load_float32,
    quiet,
    rewrite_json,
    write_llama,
    write_model,
    write_tokenizer,
)


class Payload:
    """What runs a program when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.canary),)


def test_pickled_weights_are_refused_and_never_opened(tmp_path: Path) -> None:
    folder, canary = write_llama(tmp_path / "model"), tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(canary)}))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_float32(folder)
    assert not canary.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert canary.exists()  # the payload does what it is here for


def write_code(folder: Path, canary: Path) -> None:
    code = f"import os\nos.mkdir({str(canary)!r})\n"
    code += "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
    code += "class Config(LlamaConfig):\n    model_type = 'own'\nclass Model(LlamaForCausalLM):\n    pass\n"
    code += "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    (folder / "own.py").write_text(code)
    auto_map: dict[str, Any] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    rewrite_json(folder / "config.json", auto_map=auto_map)
    if (folder / "tokenizer_config.json").exists():
        rewrite_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})


def test_code_of_a_known_architecture_is_left_alone(tmp_path: Path) -> None:
    folder, canary = write_llama(tmp_path / "model", vocab_size=TOKENIZER_SIZE, tokenizer=True), tmp_path / "canary"
    write_code(folder, canary)
    assert load_float32(folder).architecture == "LlamaForCausalLM"
    assert not canary.exists()


def test_an_architecture_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    folder, canary = write_llama(tmp_path / "model"), tmp_path / "canary"
    write_code(folder, canary)
    rewrite_json(folder / "config.json", model_type="own", architectures=["Model"])
    with pytest.raises(ModelLoadError, match="custom code"):
        load_float32(folder)
    assert not canary.exists()


def test_a_tokenizer_that_needs_its_own_code_is_not_run(tmp_path: Path) -> None:
    folder, canary = write_llama(tmp_path / "model", vocab_size=TOKENIZER_SIZE, tokenizer=True), tmp_path / "canary"
    write_code(folder, canary)
    (folder / "tokenizer.json").unlink()
    rewrite_json(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    with pytest.raises(ModelLoadError):
        load_float32(folder)
    assert not canary.exists()


def no_folder(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lla')


def unknown_architecture(folder: Path) -> None:
    rewrite_json(folder / "config.json", model_type="something_new")


def no_causal_model(folder: Path) -> None:
    rewrite_json(folder / "config.json", model_type="vit", architectures=["ViTModel"])


def nonsense_in_the_config(folder: Path) -> None:
    rewrite_json(folder / "config.json", hidden_size="wide")


def broken_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def missing_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_shapes(folder: Path) -> None:
    rewrite_json(folder / "config.json", intermediate_size=48)


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')


BROKEN = [
    no_folder,
    no_config,
    broken_config,
    unknown_architecture,
    no_causal_model,
    nonsense_in_the_config,
    broken_weights,
    empty_weights,
    missing_weights,
    other_shapes,
    broken_tokenizer,
]


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_folder_is_one_error_that_names_it(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "the-model")
    load_float32(folder)
    damage(folder)
    with pytest.raises(ModelLoadError, match="the-model") as error:
        load_float32(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("in_files", "expected"), [(5, (5,)), ([2, 3, 9], (2, 3, 9)), (None, ())])
def test_end_of_sequence_ids_are_those_of_generation_config(
    in_files: int | list[int] | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert load_float32(write_llama(tmp_path, eos_token_id=in_files)).eos_token_ids == expected


def test_end_of_sequence_ids_of_the_configuration_stand_in(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    rewrite_json(folder / "config.json", eos_token_id=[4, 5])
    (folder / "generation_config.json").unlink()
    assert load_float32(folder).eos_token_ids == (4, 5)


def test_generation_config_comes_before_the_configuration(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, eos_token_id=[7, 8])
    rewrite_json(folder / "config.json", eos_token_id=4)
    assert load_float32(folder).eos_token_ids == (7, 8)


@pytest.mark.parametrize(
    ("width", "known"), [(TOKENIZER_SIZE + 23, TOKENIZER_SIZE), (TOKENIZER_SIZE, TOKENIZER_SIZE), (100, 100)]
)
def test_the_vocabulary_is_what_tokenizer_and_model_both_have(width: int, known: int, tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path, vocab_size=width, tokenizer=True))
    assert loaded.vocab_size == known
    assert set(loaded.tokenizer_fingerprint) >= {"vocabulary", "merges"}


def test_a_folder_without_a_tokenizer_is_served_by_token_ids(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path, vocab_size=6))
    assert loaded.vocab_size == 6
    assert loaded.tokenizer_fingerprint == {}


def test_the_tiny_tokenizer_round_trips(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path))
    text = "the other\n  = é…"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == END_OF_TEXT_ID
    assert len(tokenizer("the the")["input_ids"]) < len("the the")


LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
}
LONG_ROPE_IN_SOME_LAYERS: dict[str, Any] = {
    "full_attention": {**LONG_ROPE, "original_max_position_embeddings": 100},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


@pytest.mark.parametrize(
    ("model_type", "config", "length"),
    [
        ("llama", {"max_position_embeddings": 77}, 77),
        ("gpt2", {"n_positions": 88}, 88),
        ("bloom", {}, 2048),
        ("phi3", {"original_max_position_embeddings": 128, "rope_parameters": LONG_ROPE}, 128),
        ("gemma3_text", {"rope_parameters": LONG_ROPE_IN_SOME_LAYERS}, 100),
    ],
)
def test_context_length(model_type: str, config: dict[str, Any], length: int, tmp_path: Path) -> None:
    """With LongRoPE as far as one sequence's length does not change what another one reads."""
    assert load_float32(write_model(tmp_path, model_type, **config)).context_length == length


def test_it_says_what_was_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "mistral", sliding_window=24, vocab_size=50)
    told: list[tuple[str, int, int]] = []
    loaded = load(str(folder), torch.device("cpu"), torch.bfloat16, lambda *stage: told.append(stage))
    assert (loaded.name, loaded.architecture, loaded.sliding_window) == (str(folder), "MistralForCausalLM", 24)
    weights = load_file(folder / "model.safetensors")
    assert loaded.num_parameters == sum(weight.numel() for weight in weights.values())
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training
    assert told == [("config", 0, 1), ("weights", 0, 1), ("weights", 1, 1)]


def test_no_sliding_window_is_zero(tmp_path: Path) -> None:
    assert load_float32(write_llama(tmp_path)).sliding_window == 0


@pytest.mark.parametrize("name", ["tpu", "mps", "meta", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_here_is_refused_by_field(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^device: ") as error:
        pick_device(name)
    assert repr(name) in str(error.value)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(InvalidArgument, match="the CPU and 0 CUDA devices"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "cuda:1", torch.bfloat16),
        ("float32", "cuda", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
        ("float16", "cpu", torch.float16),
    ],
)
def test_dtypes(name: str, device: str, expected: torch.dtype) -> None:
    assert pick_dtype(name, torch.device(device)) is expected


def test_a_dtype_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^dtype: 'int8' is not one of auto, float32, bfloat16, float16"):
        pick_dtype("int8", torch.device("cpu"))


def test_a_sharded_folder_loads(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    index: dict[str, str] = {}
    for part, some in enumerate((names[::2], names[1::2])):
        file = f"model-0000{part + 1}-of-00002.safetensors"
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(some, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    loaded = load(str(folder), torch.device("cpu"), torch.float32, quiet)
    assert torch.equal(loaded.model.lm_head.weight, weights["lm_head.weight"])
