"""The codes of compressed-tensors, as they are packed in its files and as our products read them."""

import torch

from specgate.runtime.stored_weights import Codes, Weight


def unpacked(words: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Return int8 codes [rows, width] of int32 words [rows, ...], which hold 4 or 8 bits each without a sign."""
    parts = words.view(torch.uint8)
    if bits == 4:
        parts = torch.stack((parts & 15, parts >> 4), -1).flatten(-2)
    return (parts[:, :width] - (1 << bits - 1)).view(torch.int8)


def weight_of_codes(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, block: int
) -> Weight:
    """Return the numbers (codes - zeros) * scales.

    Args:
        codes: int8 [out, in], with a sign.
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
    spread = scales.repeat_interleave(repeats, 1)
    # Codes of 4 bits have no sign in memory.
    shift = 8 if bits == 4 else 0
    if zeros is None:
        return Codes(codes + shift, spread, -shift * spread if shift else None, bits)
    return Codes(codes + shift, spread, -(zeros + shift).repeat_interleave(repeats, 1) * spread, bits)
