"""Layer skip: what is left out adds nothing, is not loaded, and holds no keys and values."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.architecture_runs import write_case
from tests.support.architectures import CASES, Case
from transformers import AutoModelForCausalLM

from specgate.errors import InvalidArgument, SpecgateError, UnsupportedArchitecture
from specgate.runtime import layer_skip
from specgate.runtime.layer_skip import NoAttention, NoMlp
from specgate.runtime.loading import LoadedModel, load

TOKEN_IDS = list(range(3, 40))
SERVED = [case for case in CASES if not case.refused]
NO_MLP_OF_ITS_OWN = {"OPTForCausalLM"}


def loaded_without(folder: Path, attention: list[int], mlp: list[int]) -> LoadedModel:
    file = folder / "skip.json"
    file.write_text(json.dumps(layer_skip.skip_file(str(folder), attention, mlp)))
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
    return partial(write_case, folder=tmp_path)


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_what_is_left_out_adds_nothing(case: Case, write: Callable[[Case], Path]) -> None:
    folder = write(case)
    mlp = [] if case.architecture in NO_MLP_OF_ITS_OWN else [1]
    loaded = loaded_without(folder, [0], mlp)
    assert torch.equal(logits(loaded.model), silenced(folder, [0], mlp))
    assert loaded.without_attention == {0}
    assert type(loaded.model).__name__ == case.architecture
