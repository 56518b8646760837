"""Linear layers for a few rows at a time, on the CPU.

A verification multiplies each weight matrix with γ + 1 rows, the target alone with one. There are two ways to do that,
and which is the faster one depends on the processor, on the matrices and on the number of rows: 4 rows through the
bundled target's matrices take 6.5 ms by rows times weight and 4.1 ms by weight times rows on one core of an AMD EPYC,
2.3 and 5.4 ms on one of an Intel Xeon of the fourth generation. (Some of torch's kernels repack the whole matrix in
every call; some wait for memory where others read ahead.) So both are timed when a model is loaded. Weights stay as
they are, the numbers are the same up to rounding, and the self-check that ends every load looks at this very path.

This serves where weights are not packed (``packing.py``): without the C library, or where torch is faster than it.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from specgate.runtime.timing import is_clearly_faster

TIMED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Numbers of rows that are timed; one between two of them does as the larger one, one above them as torch does."""
TIMED_NUMBERS = 16 << 20
"""How many of a model's weights are multiplied: more than a core's own cache holds."""
GAIN = 1.05
"""How much faster than torch's own another product must be, so that noise seldom decides."""

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Of a weight [out_features, in_features], rows [rows, in_features], and a bias to add: [rows, out_features]."""
Timer = Callable[[Product | None, Sequence[torch.Tensor], int], float]
"""Of a product, None for torch's own, weights, and a number of rows."""


class Products:
    """Which product so many rows take; None is torch's own.

    Args:
        by_rows: where it is another one.
    """

    def __init__(self, by_rows: Mapping[int, Product]) -> None:
        self._by_rows = by_rows
        self._recorded_rows: int | None = None

    def of(self, num_rows: int) -> Product | None:
        """Return the product of so many rows, a number or what torch makes of one while it records."""
        return self._by_rows.get(num_rows if self._recorded_rows is None else self._recorded_rows)

    @contextmanager
    def recorded_for(self, num_rows: int) -> Iterator[None]:
        """Let all rows be multiplied as so many are: while a forward is recorded numbers of rows are no numbers."""
        self._recorded_rows = num_rows
        try:
            yield
        finally:
            self._recorded_rows = None


def turned(weight: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Weight times rows."""
    out = torch.mm(weight, rows.t()).t().contiguous()
    return out if bias is None else out.add_(bias)


def twin(weight: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Weight times a lone row and its copy, for which torch does not take a product of a matrix and a vector."""
    # cat, because repeat takes as long as the product itself.
    return turned(weight, torch.cat((rows, rows)), bias)[:1]


def narrow_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor, products: Products
) -> torch.Tensor:
    """Return ``F.linear(rows, weight, bias)`` of rows [..., in_features]: [..., out_features]."""
    out_features, in_features = weight.shape
    product = products.of(rows.numel() // in_features)
    if product is None:
        return F.linear(rows, weight, bias)
    return product(weight, rows.reshape(-1, in_features), bias).view(*rows.shape[:-1], out_features)


def is_float32_on_cpu(model: nn.Module) -> bool:
    """Return whether a model is one for which a row's time is that of calling and of torch's plain products."""
    first = next(model.parameters())
    return first.device.type == "cpu" and first.dtype is torch.float32


def speed_up_narrow_rows(model: nn.Module) -> None:
    """Let plain linear layers on the CPU, in float32, take the faster product; others are left alone."""
    if not is_float32_on_cpu(model):
        return
    plain = [layer for layer in model.modules() if type(layer) is nn.Linear and layer.weight.dtype is torch.float32]
    layers = [layer for layer in plain if layer.weight.is_contiguous()]
    by_rows = fastest([layer.weight for layer in layers])
    products = Products(by_rows)
    # Where none is faster nothing stands between a layer and torch.
    for layer in layers if by_rows else ():
        layer.forward = partial(narrow_linear, layer.weight, layer.bias, products=products)  # type: ignore[method-assign]


def products_of(model: nn.Module) -> Products:
    """Return what ``speed_up_narrow_rows`` gave a model's layers."""
    forwards = (layer.forward for layer in model.modules() if type(layer) is nn.Linear)
    ours = (forward for forward in forwards if isinstance(forward, partial) and forward.func is narrow_linear)
    return next((forward.keywords["products"] for forward in ours), Products({}))


def seconds(product: Product | None, weights: Sequence[torch.Tensor], num_rows: int) -> float:
    """Return how long it takes to multiply each weight with so many rows, as its layer would."""
    rows = {weight.shape[1]: weight.new_ones(1, num_rows, weight.shape[1]) for weight in weights}
    products = Products({num_rows: product} if product else {})
    start_s = time.perf_counter()
    for weight in weights:
        narrow_linear(weight, None, rows[weight.shape[1]], products)
    return time.perf_counter() - start_s


@torch.inference_mode()
def fastest(weights: Sequence[torch.Tensor], timer: Timer = seconds) -> dict[int, Product]:
    """Return the other product by the number of rows, where it is clearly faster than torch's own."""
    some = list(some_of(weights))
    if not some:
        return {}
    faster = {num_rows for num_rows in TIMED_ROWS if _gains(num_rows, some, timer)}
    counts = range(1, TIMED_ROWS[-1] + 1)
    return {count: other(count) for count in counts if TIMED_ROWS[bisect_left(TIMED_ROWS, count)] in faster}


def other(num_rows: int) -> Product:
    """Return what may be faster than torch's own product."""
    return twin if num_rows == 1 else turned


def some_of(weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield weights of every shape, about as many numbers of each as of any other; of a large one its first rows."""
    shapes: dict[torch.Size, list[torch.Tensor]] = {}
    for weight in weights:
        shapes.setdefault(weight.shape, []).append(weight)
    for alike in shapes.values():
        room = TIMED_NUMBERS // len(shapes)
        for weight in alike:
            some = weight[: max(room // weight[0].numel(), 1)]
            yield some
            room -= some.numel()
            if room <= 0:
                break


def _gains(num_rows: int, weights: Sequence[torch.Tensor], timer: Timer) -> bool:
    one = other(num_rows)
    return is_clearly_faster(lambda: timer(one, weights, num_rows), lambda: timer(None, weights, num_rows), GAIN)
