"""The codes of compressed-tensors, as they are packed in its files and as our products read them."""

import numpy as np
import torch

from specgate.runtime.stored_weights import Codes, Weight

MIDDLE = 8
"""The code of 4 bits that stands for 0 where there are no zero points."""


def unpacked(words: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Return the codes [rows, width] of int32 words [rows, ...], int8: of 4 bits 0 to 15, of 8 bits with a sign."""
    # numpy's own loops: torch's threads take far longer to meet than such a tensor takes.
    parts = words.numpy().view(np.uint8)
    if bits == 8:
        return torch.from_numpy((parts ^ 128).view(np.int8)[:, :width])
    # Both halves of a byte at a time, the low one first.
    pairs = parts.astype(np.uint16)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return torch.from_numpy(pairs.view(np.int8)[:, :width])


def weight_of_codes(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, block: int
) -> Weight:
    """Return the numbers (codes - zeros) * scales.

    Args:
        codes: int8 [out, in].
        scales, zeros: float32 [out, groups]; no zeros: all are 0.
        bits: how a code is kept, see ``specgate.weights.kept_bits``.
        block: inputs of a scale where codes are kept; it divides those of a group.

    Returns:
        Codes of 4 or 8 bits, or with 32 float32 [out, in].
    """
    groups = scales.shape[1]
    if bits == 32:
        grouped = codes.unflatten(-1, (groups, -1)).float()
        centred = grouped if zeros is None else grouped - zeros.unsqueeze(-1)
        return (centred * scales.unsqueeze(-1)).flatten(-2)
    repeats = codes.shape[1] // groups // block
    offsets = None if zeros is None else (-zeros * scales).repeat_interleave(repeats, 1)
    return Codes(codes, scales.repeat_interleave(repeats, 1), offsets, bits)
