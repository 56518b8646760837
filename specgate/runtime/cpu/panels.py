"""Weights in panels of 16 outputs: one stream of memory, read once for up to twelve rows.

torch takes two to three times as long for 4 rows as for one, although what is read is the same. A product over panels
(``native/product.h``) takes about as long for both, and a row's numbers do not depend on other rows of its call.
bfloat16 stays that in memory and is widened on its way into a register: float32's numbers at half the bytes. So do
codes of 8 and 4 bits: code * scale is exact where the scale was float16 times a small whole number, or rounded once as
in the definition of its kind, so the bits are those of the same numbers in float32 (a zero may have another sign).
"""

from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F

from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.native_calls import LANES, Matrix
from specgate.runtime.stored_weights import Codes, Weight


class Panels(NamedTuple):
    """A packed weight [out_features, in_features].

    Attributes:
        numbers: float32 [panels, in, LANES], or bfloat16 [panels, in / 2, LANES, 2]; filled up with zeros. Codes lie
            in int32 [panels, in / 4, LANES], or of 4 bits [panels, in / 8, LANES], the first one in the lowest bits.
        bias: float32 [panels * LANES], or None.
        scales, offsets: of codes, float32 [panels, in / block, LANES], or None.
    """

    numbers: torch.Tensor
    bias: torch.Tensor | None
    out_features: int
    in_features: int
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    def with_bias(self, bias: torch.Tensor | None) -> Self:
        """Return the same panels with a bias [out_features]; layers may share a weight and not that."""
        if bias is None:
            return self
        return self._replace(bias=F.pad(bias.float(), (0, len(self.numbers) * LANES - self.out_features)))

    @property
    def matrix(self) -> Matrix:
        """Return what C reads. It is good for as long as the panels are kept."""
        parts = (self.numbers, self.bias, self.scales, self.offsets)
        addresses = (None if part is None else part.data_ptr() for part in parts)
        block = 0 if self.scales is None else self.in_features // self.scales.shape[1]
        return Matrix(*addresses, self.out_features, self.in_features, self.log_numbers_a_word, block)

    @property
    def log_numbers_a_word(self) -> int:
        """By how many bits a word of 32 is shifted to its next number, as a power: C's kinds of weights."""
        if self.scales is not None:
            return (self.in_features // self.numbers.shape[1]).bit_length() - 1
        return int(self.numbers.dtype is torch.bfloat16)


def pack(weight: Weight, bias: torch.Tensor | None = None) -> Panels:
    """Return a float32 or bfloat16 weight [out, in], or codes, and its bias [out] in panels."""
    if isinstance(weight, Codes):
        return _pack_codes(weight).with_bias(bias)
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


def _pack_codes(weight: Codes) -> Panels:
    out_features, in_features = weight.shape
    num_panels = -(-out_features // LANES)

    def by_panel(values: torch.Tensor) -> torch.Tensor:
        filled = F.pad(values, (0, 0, 0, num_panels * LANES - out_features))
        return filled.view(num_panels, LANES, -1).transpose(1, 2).contiguous()

    codes = weight.codes if weight.bits == 8 else weight.codes[:, ::2] | weight.codes[:, 1::2] << 4
    offsets = None if weight.offsets is None else by_panel(weight.offsets)
    words = by_panel(codes.contiguous().view(torch.int32))
    return Panels(words, None, out_features, in_features, by_panel(weight.scales), offsets)


def looked_up(panels: Panels, token_ids: torch.Tensor) -> torch.Tensor:
    """Return outputs' own weights, as an embedding that shares them does: float32 [..., in]."""
    panel, lane = token_ids // LANES, token_ids % LANES

    def rows_of(values: torch.Tensor) -> torch.Tensor:
        return values[panel, :, lane]

    rows = rows_of(panels.numbers)
    if panels.scales is None:
        return (rows.flatten(-2).float() if rows.dtype is torch.bfloat16 else rows)[..., : panels.in_features]
    codes = rows.contiguous().view(torch.int8)
    bits = 32 >> panels.log_numbers_a_word
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4 & 15), -1).flatten(-2)
    offsets = None if panels.offsets is None else rows_of(panels.offsets)
    return Codes(codes, rows_of(panels.scales), offsets, bits).numbers()


def _multiply(
    numbers: torch.Tensor,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    offsets: torch.Tensor | None,
    rows: torch.Tensor,
    out_features: int,
    in_features: int,
) -> torch.Tensor:
    # C sees addresses alone.
    if rows.dtype is not torch.float32 or rows.shape[-1] != in_features:
        raise ValueError(f"{rows.shape[-1]} numbers in {rows.dtype} are no float32 row of {in_features}")
    panels = Panels(numbers, bias, out_features, in_features, scales, offsets)
    flat = rows.reshape(-1, in_features).contiguous()
    out = flat.new_empty(len(flat), len(numbers) * LANES)
    native_calls.product(panels.matrix, flat, out)
    return out[:, :out_features].view(*rows.shape[:-1], out_features)


_library = torch.library.Library("specgate", "FRAGMENT")
_library.define(
    "panels_linear(Tensor numbers, Tensor? bias, Tensor? scales, Tensor? offsets, Tensor rows, int out_features,"
    " int in_features) -> Tensor"
)
_library.impl("panels_linear", _multiply, "CPU")


def linear(panels: Panels, rows: torch.Tensor) -> torch.Tensor:
    """Return ``F.linear`` of float32 rows [..., in_features]: [..., out_features]. A recorded forward can hold it."""
    operator: Any = torch.ops.specgate.panels_linear
    own = (panels.numbers, panels.bias, panels.scales, panels.offsets)
    return cast(torch.Tensor, operator(*own, rows, panels.out_features, panels.in_features))
