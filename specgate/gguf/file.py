"""A GGUF file's header, read with every length checked against the file before anything is allocated.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from specgate.errors import ModelLoadError

SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_DIMENSIONS, _MOST_ALIGNMENT = 4, 1 << 16
_MOST = {"values": 1 << 12, "tensors": 1 << 16, "texts in an array": 1 << 22}
"""What takes more memory than its bytes in the file is bounded: the largest models have a tenth of this."""
_MOST_NAME = 256
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class Kind(NamedTuple):
    """How a tensor is stored: numbers of a block, its bytes in the file, and in our memory; 0: such ones are not read.

    In memory a scale and an offset are float32, and codes of 5 and 6 bits take 8.
    """

    name: str
    block: int
    num_bytes: int
    kept_bytes: int = 0


KINDS = {
    0: Kind("F32", 1, 4, 4), 1: Kind("F16", 1, 2, 4), 2: Kind("Q4_0", 32, 18, 24), 3: Kind("Q4_1", 32, 20, 24),
    6: Kind("Q5_0", 32, 22, 36), 7: Kind("Q5_1", 32, 24, 40), 8: Kind("Q8_0", 32, 34, 36), 10: Kind("Q2_K", 256, 84),
    11: Kind("Q3_K", 256, 110), 12: Kind("Q4_K", 256, 144, 192), 13: Kind("Q5_K", 256, 176, 320),
    14: Kind("Q6_K", 256, 210, 320), 16: Kind("IQ2_XXS", 256, 66), 17: Kind("IQ2_XS", 256, 74),
    18: Kind("IQ3_XXS", 256, 98), 19: Kind("IQ1_S", 256, 50), 20: Kind("IQ4_NL", 32, 18), 21: Kind("IQ3_S", 256, 110),
    22: Kind("IQ2_S", 256, 82), 23: Kind("IQ4_XS", 256, 136), 24: Kind("I8", 1, 1), 25: Kind("I16", 1, 2),
    26: Kind("I32", 1, 4), 27: Kind("I64", 1, 8), 28: Kind("F64", 1, 8), 29: Kind("IQ1_M", 256, 56),
    30: Kind("BF16", 1, 2, 2),
}  # fmt: skip
"""A tensor's kind by its number."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. ``shape`` is torch's: the last dimension is the one along which blocks lie."""

    kind: Kind
    shape: tuple[int, ...]
    offset: int

    @property
    def num_numbers(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_numbers // self.kind.block * self.kind.num_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says of itself. Values are numbers, bools, texts, and arrays of these: numpy's, or lists of texts."""

    path: Path
    values: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_numbers for tensor in self.tensors.values())

    @property
    def kept_bytes(self) -> int:
        """What the weights take in memory where they stay as they are stored."""
        return sum(one.num_numbers // one.kind.block * one.kind.kept_bytes for one in self.tensors.values())

    def bytes_of(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of a tensor. Raises ModelLoadError: the file was cut meanwhile."""
        tensor = self.tensors[name]
        data = np.fromfile(self.path, np.uint8, tensor.num_bytes, offset=tensor.offset)
        if len(data) != tensor.num_bytes:
            raise ModelLoadError(f"{self.path}: it ends within the tensor {name}")
        return data


def is_gguf(name: str) -> bool:
    """Return whether ``name`` is that of a GGUF file."""
    return name.lower().endswith(SUFFIX) and not Path(name).is_dir()


@contextmanager
def naming(file: GgufFile) -> Iterator[None]:
    """Let whatever goes wrong with the values of a file be a ModelLoadError that names it."""
    try:
        yield
    except ModelLoadError:
        raise
    # What values of a wrong type or size make transformers and tokenizers raise is not of one kind.
    except Exception as error:
        raise ModelLoadError.of(error, str(file.path)) from error


def read_gguf(path: str) -> GgufFile:
    """Read a file's header.

    Raises:
        ModelLoadError: there is no such file, or it is none; the message names what is wrong.
    """
    try:
        with Path(path).open("rb") as file:
            return _Reader(file, Path(path)).read()
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror or error}") from error
    except _BrokenFile as error:
        raise ModelLoadError(f"{path}: {error}") from error


class _BrokenFile(Exception):
    """Says what about the file is wrong."""


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._left = self._size = os.fstat(file.fileno()).st_size

    def read(self) -> GgufFile:
        if self._bytes(4) != _MAGIC:
            raise _BrokenFile("it is no GGUF file")
        version, num_tensors, num_values = self._unpack("<IQQ")
        if version not in _VERSIONS:
            raise _BrokenFile(f"its version is {version}; versions 2 and 3 are read")
        # A value has at least a length and a type, a tensor a length, a number of dimensions, a type and a place.
        self._check_count("values", num_values, 8 + 4)
        self._check_count("tensors", num_tensors, 8 + 4 + 4 + 8)
        values: dict[str, Any] = {}
        for _ in range(num_values):
            name = self._name()
            if name in values:
                raise _BrokenFile(f"it has the value {name} twice")
            values[name] = self._value(*self._unpack("<I"))
        tensors = dict(self._tensor() for _ in range(num_tensors))
        if len(tensors) != num_tensors:
            raise _BrokenFile("it has a tensor twice")
        return GgufFile(self._path, values, self._placed(tensors, values.get("general.alignment", 32)))

    def _placed(self, tensors: dict[str, StoredTensor], alignment: Any) -> dict[str, StoredTensor]:
        """Return the tensors with their places in the file."""
        if not isinstance(alignment, int) or not 0 < alignment <= _MOST_ALIGNMENT:
            raise _BrokenFile(f"its alignment is {alignment!r}")
        header = self._size - self._left
        start = header + -header % alignment
        end = start
        placed = {}
        for name, one in sorted(tensors.items(), key=lambda both: both[1].offset):
            first, last = start + one.offset, start + one.offset + one.num_bytes
            if one.offset % alignment or first < end or last > self._size:
                raise _BrokenFile(f"the tensor {name} is {one.num_bytes} bytes at {first} of {self._size}")
            placed[name], end = StoredTensor(one.kind, one.shape, first), last
        return placed

    def _tensor(self) -> tuple[str, StoredTensor]:
        name, (num_dimensions,) = self._name(), self._unpack("<I")
        if not 0 < num_dimensions <= _MOST_DIMENSIONS:
            raise _BrokenFile(f"the tensor {name} has {num_dimensions} dimensions")
        sizes = self._unpack(f"<{num_dimensions}Q")
        number, offset = self._unpack("<IQ")
        if number not in KINDS:
            raise _BrokenFile(f"the tensor {name} is of kind {number}, which is unknown")
        kind, tensor = KINDS[number], StoredTensor(KINDS[number], tuple(reversed(sizes)), offset)
        if sizes[0] % kind.block or not 0 < tensor.num_bytes <= self._size:
            raise _BrokenFile(f"the tensor {name} of kind {kind.name} has the shape {list(sizes)}")
        if not kind.kept_bytes:
            read = ", ".join(kind.name for kind in KINDS.values() if kind.kept_bytes)
            raise _BrokenFile(f"the tensor {name} is of kind {kind.name}; read are {read}")
        return name, tensor

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, count = self._unpack("<IQ")
            if element == _STRING:
                self._check_count("texts in an array", count, 8)
                return [self._string() for _ in range(count)]
            return self._numbers(element, count)
        return self._numbers(kind, 1)[0].item()

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        if kind not in _NUMBERS:
            raise _BrokenFile(f"a value is of kind {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        self._check_count("numbers in an array", count, dtype.itemsize)
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype)

    def _name(self) -> str:
        """Read what messages repeat."""
        name = self._string()
        if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
            raise _BrokenFile(f"it has a name {name[:_MOST_NAME]!r}")
        return name

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        self._check_count("bytes in a text", length, 1)
        # Tokens may be parts of a character.
        return self._bytes(length).decode("utf-8", "surrogateescape")

    def _check_count(self, what: str, count: int, least_bytes: int) -> None:
        if count * least_bytes > self._left:
            raise _BrokenFile(f"it has {count} {what}, and {self._left} bytes left")
        if count > _MOST.get(what, count):
            raise _BrokenFile(f"it has {count} {what}; {_MOST[what]} are read at the most")

    def _unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, count: int) -> bytes:
        if count > self._left or len(data := self._file.read(count)) != count:
            raise _BrokenFile("it ends too soon")
        self._left -= count
        return data
