"""What the blocks of a GGUF file say, as codes with a scale and perhaps an offset.

The numbers are those of ggml's own definitions (ggml-quants.c), but for the sign of a zero: a code times a scale is
exact or, in Q6_K, rounded once as there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile
from specgate.runtime.stored_weights import Codes

Bytes = np.ndarray[Any, np.dtype[Any]]
Parts = tuple[Bytes, Bytes, Bytes | None]
"""Codes [blocks, numbers], and of each part of a block a scale and an offset, [blocks, parts]."""
PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def tensor_of(file: GgufFile, name: str) -> torch.Tensor | Codes:
    """Return a tensor as it is stored: float32, bfloat16, or codes; float16 becomes float32.

    Raises:
        ModelLoadError: the file was cut, or a scale is no number.
    """
    tensor, data = file.tensors[name], file.bytes_of(name)
    kind = tensor.kind.name
    if kind in PLAIN:
        numbers = data.view(PLAIN[kind]).reshape(tensor.shape)
        if kind == "BF16":
            return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(numbers.astype(np.float32, copy=False))
    with np.errstate(all="ignore"):
        codes, scales, offsets = _READ[kind](data.reshape(-1, tensor.kind.num_bytes))
    if not np.isfinite(scales).all() or (offsets is not None and not np.isfinite(offsets).all()):
        raise ModelLoadError(f"{file.path}: the tensor {name} has scales that are no numbers")
    num_rows = int(np.prod(tensor.shape[:-1]))
    return Codes(
        torch.from_numpy(codes.view(np.int8).reshape(num_rows, -1)),
        torch.from_numpy(scales.reshape(num_rows, -1)),
        None if offsets is None else torch.from_numpy(offsets.reshape(num_rows, -1)),
        bits=4 if kind.startswith("Q4") else 8,
    )


def _halves(blocks: Bytes, place: int) -> Bytes:
    """Return float16 numbers at a place of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, place : place + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low halves of bytes, then the high ones: [..., 2 * bytes]."""
    return np.concatenate((packed & 15, packed >> 4), -1)


def _fifth_bits(blocks: Bytes, place: int) -> Bytes:
    return np.unpackbits(np.ascontiguousarray(blocks[:, place : place + 4]), axis=1, bitorder="little") << 4


def _q8_0(blocks: Bytes) -> Parts:
    return np.ascontiguousarray(blocks[:, 2:]), _halves(blocks, 0), None


def _q4_0(blocks: Bytes) -> Parts:
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    return (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)) - np.uint8(16), _halves(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _halves(blocks, 0), _halves(blocks, 2)


def _scales_and_offsets(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Return those of the eight parts of a block of Q4_K or Q5_K, which are six bits each."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), 1)
    offsets = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), 1)
    return _halves(blocks, 0) * scales, -(_halves(blocks, 2) * offsets)


def _q4_k(blocks: Bytes) -> Parts:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return codes, *_scales_and_offsets(blocks)


def _q5_k(blocks: Bytes) -> Parts:
    bits = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> bits & 1) << 4
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth
    return codes.reshape(-1, 256), *_scales_and_offsets(blocks)


def _q6_k(blocks: Bytes) -> Parts:
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes = _nibbles(low).reshape(-1, 2, 4, 32) | (high >> shifts & 3) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return (codes - np.uint8(32)).reshape(-1, 256), _halves(blocks, 208) * scales, None


_READ: dict[str, Callable[[Bytes], Any]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}  # fmt: skip
