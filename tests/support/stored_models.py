"""Models whose weights stay as their files have them, compared with transformers' own in float32."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from specgate.runtime.loading import load
from specgate.runtime.stored_weights import Codes, weight_of
from tests.support.models import quiet

IDS = [5, 40, 7, 63, 31, 4]


def load_cpu(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    return load(str(path), torch.device("cpu"), dtype, quiet, **options)


def numbers_of(model: Any) -> dict[str, torch.Tensor]:
    """Return all weights in float32."""
    found = {name: one for name, one in model.named_parameters() if not one.isnan().any()}
    for name, module in model.named_modules():
        if type(module) in (nn.Linear, nn.Embedding):
            weight = weight_of(module)
            found[f"{name}.weight"] = weight.numbers() if isinstance(weight, Codes) else weight.float()
    return found


def expect_same_numbers(model: Any, expected: Any) -> None:
    found, wanted = numbers_of(model), numbers_of(expected)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@torch.inference_mode()
def expect_alike(model: Any, expected: Any) -> None:
    tokens = torch.tensor([IDS])
    torch.testing.assert_close(model(tokens).logits, expected(tokens).logits, rtol=1e-4, atol=1e-4)
