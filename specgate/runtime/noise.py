"""Counter-based randomness: every number is a function of (seed, position, purpose, token id) alone.

Integer stage: SplitMix64 (Steele, Lea, Flood 2014), the output for counter ``token id`` of a stream whose start is
a BLAKE2b digest of (seed, purpose, position, round). It uses nothing but 64-bit adds, shifts and multiplications, so
it is bit-equal on every device and easy to write again in another language. Uniform stage: the top 52 bits plus a
half, times 2^-52, in float64: strictly inside (0, 1). 53 bits would round to 1.0 at the extreme word, and a float32
uniform rounds to 1.0 so often that a large vocabulary meets it every few hundred tokens.
"""

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a random number decides. Numbers of different purposes are independent."""

    SHARED = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4
    TARGET = 5


def row_key(seed: int, position: int, purpose: Purpose, round_index: int = 0) -> int:
    """Return the 64-bit start of one row's stream. ``round_index`` keys a draft's randomness alone."""
    message = struct.pack("<QQQQ", seed, int(purpose), position, round_index)
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")


def on_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor [len(values)] on the device, without waiting for what the device does just now."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(words: torch.Tensor, bits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Logical shift: torch's int64 shift copies the sign bit in."""
    return torch.bitwise_right_shift(words, bits, out=out).bitwise_and_((1 << (64 - bits)) - 1)


def words(keys: Sequence[int], token_ids: torch.Tensor) -> torch.Tensor:
    """Return the integer stage, int64 [len(keys), len(token_ids)], to be read as unsigned."""
    starts = on_device([signed(key) for key in keys], torch.int64, token_ids.device)
    z = starts[:, None] + (token_ids + 1) * signed(_GOLDEN)
    # In place: on a CPU, fresh memory for every step would cost more than the steps.
    shifted = torch.empty_like(z)
    z.bitwise_xor_(_shift_right(z, 30, out=shifted)).mul_(signed(_MIX_1))
    z.bitwise_xor_(_shift_right(z, 27, out=shifted)).mul_(signed(_MIX_2))
    return z.bitwise_xor_(_shift_right(z, 31, out=shifted))


def uniforms(random_words: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers strictly inside (0, 1), one a word."""
    return _shift_right(random_words, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)


def gumbel(keys: Sequence[int], token_ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise, float64 [len(keys), len(token_ids)]: argmax(log p + g) is a sample of p."""
    return uniforms(words(keys, token_ids)).log_().neg_().log_().neg_()


def word(key: int, counter: int = 0) -> int:
    """Return one number of the integer stage, unsigned, in plain Python."""
    z = (key + (counter + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def uniform(key: int, counter: int = 0) -> float:
    """Return one float64 strictly inside (0, 1)."""
    return ((word(key, counter) >> 12) + 0.5) * 2.0**-52
