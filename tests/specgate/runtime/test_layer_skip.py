"""Layer skip: what is left out adds nothing, is not loaded, and holds no keys and values."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate.errors import InvalidArgument, UnsupportedArchitecture
from specgate.runtime import layer_skip
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import LoadedModel, load
from tests.support.architecture_runs import write_case
from tests.support.architectures import CASES, Case

PAGE_SIZE = 20
TOKEN_IDS = list(range(3, 40))
SERVED = [case for case in CASES if not case.refused]
NO_MLP_OF_ITS_OWN = {"OPTForCausalLM"}


def loaded_without(folder: Path, attention: list[int], mlp: list[int]) -> LoadedModel:
    file = folder / "skip.json"
    file.write_text(json.dumps({"num_layers": 2, "attention": attention, "mlp": mlp}))
    return load(str(folder), torch.device("cpu"), torch.float32, lambda *_: None, str(file))


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([TOKEN_IDS]), use_cache=False).logits
    return found


def silenced(folder: Path, attention: list[int], mlp: list[int]) -> torch.Tensor:
    """Return the logits of the whole model, the outputs of these blocks set to zero."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    layers = layer_skip._decoder_layers(model)
    for index in attention:
        block = getattr(layers[index], layer_skip._attention_name(model, layers[index]))
        block.register_forward_hook(lambda module, args, out: (torch.zeros_like(out[0]), None))
    for index in mlp:
        block = getattr(layers[index], layer_skip._mlp_name(model, layers[index]))
        block.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    return logits(model)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Case], Path]:
    return partial(write_case, folder=tmp_path / "model")


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_what_is_left_out_adds_nothing(case: Case, write: Callable[[Case], Path]) -> None:
    folder = write(case)
    mlp = [] if case.architecture in NO_MLP_OF_ITS_OWN else [1]
    loaded = loaded_without(folder, [0], mlp)
    assert torch.equal(logits(loaded.model), silenced(folder, [0], mlp))
    assert loaded.without_attention == {0}
    assert type(loaded.model).__name__ == case.architecture
    # The serving path, which its self-check holds against the model's own forward, windows included.
    prepare(loaded, 1200, PAGE_SIZE, lambda *_: None)


@pytest.mark.parametrize("case", [case for case in SERVED if case.name != "OPT-350m"], ids=lambda case: case.name)
def test_a_layer_of_which_nothing_is_left_is_gone(case: Case, write: Callable[[Case], Path]) -> None:
    """(The norms of OPT-350m come after its blocks, and stay where only the blocks are silent.)"""
    folder = write(case)
    expected = None if case.architecture in NO_MLP_OF_ITS_OWN else silenced(folder, [0], [0])
    loaded = loaded_without(folder, [0], [0])
    assert len(layer_skip._decoder_layers(loaded.model)) == loaded.model.config.num_hidden_layers == 1
    assert expected is None or torch.equal(logits(loaded.model), expected)
    prepare(loaded, 1200, PAGE_SIZE, lambda *_: None)


def test_only_what_is_kept_is_loaded_and_holds_keys(llama: Path) -> None:
    whole = load(str(llama), torch.device("cpu"), torch.float32, lambda *_: None)
    layers = layer_skip._decoder_layers(whole.model)
    left_out: list[Any] = [layers[0].self_attn, layers[1].mlp]
    num_left_out = sum(parameter.numel() for block in left_out for parameter in block.parameters())
    loaded = loaded_without(llama, [0], [1])
    assert loaded.num_parameters == whole.num_parameters - num_left_out
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"cpu"}
    runner, whole_runner = (prepare(one, 1200, PAGE_SIZE, lambda *_: None) for one in (loaded, whole))
    assert 2 * runner.kv_bytes_a_token == whole_runner.kv_bytes_a_token


@pytest.fixture
def llama(write: Callable[[Case], Path]) -> Path:
    return write(next(case for case in SERVED if case.name == "Llama"))


FILES: list[tuple[dict[str, Any] | str | None, str]] = [
    ({"attention": [2]}, "attention names layer 2, there are 0 to 1"),
    ({"mlp": [-1]}, "mlp names layer -1, there are 0 to 1"),
    ({"mlp": "all"}, "mlp is 'all', not a list of layer numbers"),
    ({"mlp": [True]}, r"mlp is \[True\], not a list of layer numbers"),
    ({"attention": [0, 1], "mlp": [0, 1]}, "leaves out so much that nothing is left"),
    ({"attention": [0, 1]}, "leaves out so much that no attention is left"),
    ({"num_layers": 3}, "num_layers is 3, .* has 2 layers"),
    ({"atention": [0]}, "'atention' is none of num_layers, attention, mlp"),
    ({"attention": []}, "leaves out nothing"),
    (None, "cannot be read: No such file"),
    ("[]", "is no JSON object"),
    ("{", "is no JSON: "),
]


@pytest.mark.parametrize(("change", "problem"), FILES, ids=[problem for _, problem in FILES])
def test_a_file_that_cannot_be_is_one_clear_error(
    llama: Path, change: dict[str, Any] | str | None, problem: str
) -> None:
    file = llama / "skip.json"
    if isinstance(change, dict):
        change = json.dumps({"num_layers": 2, "attention": [0]} | change)
    if change is not None:
        file.write_text(change)
    with pytest.raises(InvalidArgument, match=problem) as refused:
        layer_skip.read_skip(str(file), str(llama))
    assert refused.value.field == "--skip"


def test_an_mlp_that_is_no_block_is_refused_by_name(write: Callable[[Case], Path]) -> None:
    folder = write(next(case for case in SERVED if case.name == "OPT"))
    with pytest.raises(UnsupportedArchitecture, match="OPTForCausalLM: its MLP is no block of its own"):
        loaded_without(folder, [], [1])
