"""Every product is torch's own, for every number of rows, and the faster one is taken."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specgate.runtime.cpu import linear
from specgate.runtime.cpu.linear import (
    Product,
    Products,
    Timer,
    fastest,
    narrow_linear,
    speed_up_narrow_rows,
    turned,
    twin,
)

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TURNED = {1: twin, **dict.fromkeys(range(2, 17), turned)}
CHOICES = [{}, TURNED]


def timer(other_us: dict[int, float]) -> Timer:
    """What takes so long by the number of rows, or 200 µs; torch's own product 100 µs."""

    def seconds(product: Product | None, weights: Sequence[torch.Tensor], num_rows: int) -> float:
        return (other_us.get(num_rows, 200.0) if product else 100.0) / 1e6

    return seconds


@pytest.mark.parametrize("products", CHOICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 9, 16, 40])
def test_equals_the_plain_product(num_rows: int, bias: bool, products: dict[int, Product]) -> None:
    layer = nn.Linear(24, 56, bias=bias)
    rows = torch.randn(1, num_rows, 24)
    out = narrow_linear(layer.weight, layer.bias, rows, Products(products))
    assert out.is_contiguous()
    torch.testing.assert_close(out, F.linear(rows, layer.weight, layer.bias), **TOLERANCE)


@pytest.mark.parametrize("products", CHOICES)
@pytest.mark.parametrize("shape", [(24,), (1, 1, 24), (3, 24), (2, 1, 3, 24)])
def test_keeps_the_leading_shape(shape: tuple[int, ...], products: dict[int, Product]) -> None:
    weight = torch.randn(56, 24)
    assert narrow_linear(weight, None, torch.randn(shape), Products(products)).shape == (*shape[:-1], 56)


@pytest.mark.parametrize(
    ("other_us", "expected"),
    [
        ({}, {}),
        ({1: 50.0, 4: 94.0, 5: 96.0}, {1: twin, 4: turned}),
        ({8: 50.0, 16: 50.0}, dict.fromkeys((8, 13, 14, 15, 16), turned)),
        (dict.fromkeys(linear.TIMED_ROWS, 50.0), TURNED),
    ],
)
def test_the_other_product_is_taken_where_it_is_clearly_faster(
    other_us: dict[int, float], expected: dict[int, Product]
) -> None:
    assert fastest([torch.randn(8, 4)], timer(other_us)) == expected


def test_no_more_of_the_weights_is_multiplied_than_tells_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[tuple[int, ...], ...]] = set()

    def seconds(product: Product | None, weights: Sequence[torch.Tensor], num_rows: int) -> float:
        seen.add(tuple(tuple(weight.shape) for weight in weights))
        return 1.0

    monkeypatch.setattr(linear, "TIMED_NUMBERS", 2 * 3 * 4 * 8)
    fastest([torch.randn(8, 4) for _ in range(9)] + [torch.randn(100, 8)], seconds)
    # As many numbers of either shape, and of the large matrix its first rows.
    assert seen == {((8, 4),) * 3 + ((12, 8),)}
    assert fastest([], seconds) == {}


def test_time_passes() -> None:
    assert all(linear.seconds(product, [torch.randn(8, 4)], 1) > 0 for product in (None, twin))


@pytest.mark.parametrize("products", CHOICES)
def test_every_linear_layer_takes_what_was_faster(
    products: dict[int, Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []

    def heard(product: Product) -> Product:
        def multiply(weight: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            calls.append((*weight.shape, len(rows)))
            return product(weight, rows, bias)

        return multiply

    monkeypatch.setattr(linear, "fastest", lambda _: {count: heard(product) for count, product in products.items()})
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))
    speed_up_narrow_rows(model)
    for num_rows in (1, 2, 17):
        assert model(torch.randn(1, num_rows, 8)).shape == (1, num_rows, 3)
    assert calls == ([(4, 8, 1), (3, 4, 1), (4, 8, 2), (3, 4, 2)] if products else [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 4)).to(dtype)
    speed_up_narrow_rows(model)
    assert "forward" not in vars(model[0])
