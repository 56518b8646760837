"""Loading: safetensors alone, no code from the folder, and what its files say of the model."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgate.devices import pick_device
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.runtime.loading import load, pick_dtype
from tests.support.models import TOKENIZER_SIZE, load_float32, rewrite_json, write_llama, write_model


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


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, Path]:
    """A Llama whose folder brings code for everything, and the canary that any of it would make."""
    folder, canary = write_llama(tmp_path / "model", vocab_size=TOKENIZER_SIZE, tokenizer=True), tmp_path / "canary"
    code = f"import os\nos.mkdir({str(canary)!r})\n"
    code += "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
    code += "class Config(LlamaConfig):\n    model_type = 'own'\nclass Model(LlamaForCausalLM):\n    pass\n"
    code += "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    (folder / "own.py").write_text(code)
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    rewrite_json(folder / "config.json", auto_map=auto_map)
    rewrite_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    return folder, canary


def test_code_of_a_known_architecture_is_left_alone(planted: tuple[Path, Path]) -> None:
    folder, canary = planted
    assert load_float32(folder).architecture == "LlamaForCausalLM"
    assert not canary.exists()


@pytest.mark.parametrize(("part", "told"), [("architecture", "custom code"), ("tokenizer", "model: ")])
def test_what_needs_its_own_code_is_refused_and_not_run(part: str, told: str, planted: tuple[Path, Path]) -> None:
    folder, canary = planted
    if part == "architecture":
        rewrite_json(folder / "config.json", model_type="own", architectures=["Model"])
    else:
        (folder / "tokenizer.json").unlink()
        rewrite_json(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    with pytest.raises(ModelLoadError, match=told):
        load_float32(folder)
    assert not canary.exists()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def without_one(file: Path) -> None:
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})


Damage = bytes | dict[str, Any] | Callable[[Path], None]
"""A file's new contents, changed fields of it, or what is done to it."""
BROKEN: dict[str, tuple[str, Damage]] = {
    "no folder": ("", shutil.rmtree),
    "no config": ("config.json", Path.unlink),
    "half a config": ("config.json", b'{"model_type": "lla'),
    "unknown architecture": ("config.json", {"model_type": "something_new"}),
    "no causal model": ("config.json", {"model_type": "vit", "architectures": ["ViTModel"]}),
    "nonsense in the config": ("config.json", {"hidden_size": "wide"}),
    "other shapes": ("config.json", {"intermediate_size": 48}),
    "half of the weights": ("model.safetensors", cut_short),
    "empty weights": ("model.safetensors", b""),
    "a weight is missing": ("model.safetensors", without_one),
    "broken tokenizer": ("tokenizer.json", b'{"version": "1.0"}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_folder_is_one_error_that_names_it(name: str, tmp_path: Path) -> None:
    file_name, damage = BROKEN[name]
    folder = write_llama(tmp_path / "the-model")
    if isinstance(damage, bytes):
        (folder / file_name).write_bytes(damage)
    elif isinstance(damage, dict):
        rewrite_json(folder / file_name, **damage)
    else:
        damage(folder / file_name)
    with pytest.raises(ModelLoadError, match="the-model") as error:
        load_float32(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(5, 4, (5,)), ([2, 3, 9], 4, (2, 3, 9)), (None, None, ()), ("no file", [4, 5], (4, 5))],
)
def test_end_of_sequence_ids_are_those_of_generation_config_then_of_the_configuration(
    generation: Any, config: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    folder = write_llama(tmp_path, eos_token_id=None if generation == "no file" else generation)
    rewrite_json(folder / "config.json", eos_token_id=config)
    if generation == "no file":
        (folder / "generation_config.json").unlink()
    assert load_float32(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("width", "known"), [(TOKENIZER_SIZE + 23, TOKENIZER_SIZE), (TOKENIZER_SIZE, TOKENIZER_SIZE), (100, 100)]
)
def test_the_vocabulary_is_what_tokenizer_and_model_both_have(width: int, known: int, tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path, vocab_size=width, tokenizer=True))
    assert loaded.vocab_size == known
    assert set(loaded.tokenizer_fingerprint) >= {"vocabulary", "merges"}


LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
}  # fmt: skip
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


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs the tests may have any."""
    for count, first in ((0, "cpu"), (2, "cuda:0")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert (pick_device("auto"), pick_device("cpu")) == (torch.device(first), torch.device("cpu"))
        with pytest.raises(InvalidArgument, match=f"the CPU and {count} CUDA devices"):
            pick_device(f"cuda:{count}")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    for name in ("tpu", "mps", "cuda:99", "cpu:x", ""):
        with pytest.raises(InvalidArgument, match=rf"^device: .*{name!r}"):
            pick_device(name)


def test_dtypes() -> None:
    names = (("auto", "cpu", "float32"), ("auto", "cuda:1", "bfloat16"), ("float32", "cuda", "float32"))
    for name, device, expected in (*names, ("bfloat16", "cpu", "bfloat16"), ("float16", "cpu", "float16")):
        assert pick_dtype(name, torch.device(device)) is getattr(torch, expected)
    with pytest.raises(InvalidArgument, match=r"^dtype: 'int8' is not one of auto, float32, bfloat16, float16"):
        pick_dtype("int8", torch.device("cpu"))
