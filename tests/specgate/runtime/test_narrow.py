"""The turned product is the plain one, for every number of rows, with and without a twin."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specgate.runtime import narrow
from specgate.runtime.narrow import narrow_linear, speed_up_narrow_rows

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 9, 40])
def test_equals_the_plain_product(num_rows: int, bias: bool, twin: bool) -> None:
    layer = nn.Linear(24, 56, bias=bias)
    rows = torch.randn(1, num_rows, 24)
    out = narrow_linear(layer.weight, layer.bias, rows, twin)
    assert out.is_contiguous()
    torch.testing.assert_close(out, F.linear(rows, layer.weight, layer.bias), **TOLERANCE)


@pytest.mark.parametrize("shape", [(24,), (3, 24), (2, 1, 3, 24)])
def test_keeps_the_leading_shape(shape: tuple[int, ...]) -> None:
    weight = torch.randn(56, 24)
    assert narrow_linear(weight, None, torch.randn(shape), twin=True).shape == (*shape[:-1], 56)


@pytest.mark.parametrize(("limit", "products"), [(0, 1), (narrow.TWIN_BYTES, 0)])
def test_a_lone_row_gets_a_twin_in_a_large_model_only(
    limit: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    plain = torch.mm

    def mm(weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(columns.shape))
        return plain(weight, columns)

    monkeypatch.setattr(narrow, "TWIN_BYTES", limit)
    model = nn.Sequential(nn.Linear(8, 4))
    speed_up_narrow_rows(model)
    monkeypatch.setattr(torch, "mm", mm)
    model(torch.randn(1, 1, 8))
    assert shapes == [(8, 2)] * products


def test_other_dtypes_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 4)).bfloat16()
    speed_up_narrow_rows(model)
    assert "forward" not in vars(model[0])
