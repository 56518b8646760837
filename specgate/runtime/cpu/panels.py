"""Weights in panels of 16 outputs: one stream of memory, read once for up to twelve rows.

torch takes two to three times as long for 4 rows as for one, although what is read is the same. A product over panels
(``native/product.h``) takes about as long for both, and a row's numbers do not depend on other rows of its call.
bfloat16 stays that in memory and is widened on its way into a register: float32's numbers at half the bytes.
"""

from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F

from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.native_calls import LANES, Matrix


class Panels(NamedTuple):
    """A packed weight [out_features, in_features].

    Attributes:
        numbers: float32 [panels, in, LANES], or bfloat16 [panels, in / 2, LANES, 2]; filled up with zeros.
        bias: float32 [panels * LANES], or None.
    """

    numbers: torch.Tensor
    bias: torch.Tensor | None
    out_features: int
    in_features: int

    def with_bias(self, bias: torch.Tensor | None) -> Self:
        """Return the same panels with a bias [out_features]; layers may share a weight and not that."""
        if bias is None:
            return self
        return self._replace(bias=F.pad(bias.float(), (0, len(self.numbers) * LANES - self.out_features)))

    @property
    def matrix(self) -> Matrix:
        """Return what C reads. It is good for as long as the panels are kept."""
        bias = None if self.bias is None else self.bias.data_ptr()
        is_bfloat16 = self.numbers.dtype is torch.bfloat16
        return Matrix(self.numbers.data_ptr(), bias, self.out_features, self.in_features, is_bfloat16)


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Panels:
    """Return a float32 or bfloat16 weight [out, in] and its bias [out] in panels."""
    out_features, in_features = weight.shape
    num_panels = -(-out_features // LANES)
    width = in_features + in_features % 2 if weight.dtype is torch.bfloat16 else in_features
    if weight.shape != (num_panels * LANES, width):
        weight = F.pad(weight, (0, width - in_features, 0, num_panels * LANES - out_features))
    if weight.dtype is torch.bfloat16:
        numbers = weight.reshape(num_panels, LANES, width // 2, 2).transpose(1, 2)
    else:
        numbers = weight.reshape(num_panels, LANES, width).transpose(1, 2)
    return Panels(numbers.contiguous(), None, out_features, in_features).with_bias(bias)


def looked_up(numbers: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return outputs' own weights, as an embedding that shares them does: float32 [..., in], an even number of them."""
    rows = numbers[token_ids // LANES, :, token_ids % LANES]
    return rows.flatten(-2).float() if numbers.dtype is torch.bfloat16 else rows


def _multiply(numbers: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor, out_features: int) -> torch.Tensor:
    in_features = rows.shape[-1]
    numbers_a_step = 2 if numbers.dtype is torch.bfloat16 else 1
    # C sees addresses alone. Of an odd number of inputs in bfloat16 the last pair is half empty.
    if rows.dtype is not torch.float32 or -(-in_features // numbers_a_step) != numbers.shape[1]:
        raise ValueError(f"{in_features} numbers in {rows.dtype} are no float32 row for panels {tuple(numbers.shape)}")
    panels = Panels(numbers, bias, out_features, in_features)
    flat = rows.reshape(-1, in_features).contiguous()
    out = flat.new_empty(len(flat), len(numbers) * LANES)
    native_calls.product(panels.matrix, flat, out)
    return out[:, :out_features].view(*rows.shape[:-1], out_features)


_library = torch.library.Library("specgate", "FRAGMENT")
_library.define("panels_linear(Tensor numbers, Tensor? bias, Tensor rows, int out_features) -> Tensor")
_library.impl("panels_linear", _multiply, "CPU")


def linear(panels: Panels, rows: torch.Tensor) -> torch.Tensor:
    """Return ``F.linear`` of float32 rows [..., in_features]: [..., out_features]. A recorded forward can hold it."""
    operator: Any = torch.ops.specgate.panels_linear
    return cast(torch.Tensor, operator(panels.numbers, panels.bias, rows, panels.out_features))
