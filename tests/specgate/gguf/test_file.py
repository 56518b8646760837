"""A GGUF file's header: what is written is read, and what cannot be is refused before anything is allocated."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile, read_gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


VALUES = [
    value("general.architecture", 8, text("llama")),
    value("llama.block_count", 4, struct.pack("<I", 2)),
    value("tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("d")),
    value("types", 9, struct.pack("<IQ", 5, 3) + struct.pack("<3i", 1, 1, 3)),
    value("flag", 7, b"\1"),
]
TENSORS = [tensor("one", (64, 2), 8, 0), tensor("two", (4,), 0, 160)]
DATA = bytes(160 + 16)


def whole(
    values: list[bytes] = VALUES,
    tensors: list[bytes] = TENSORS,
    data: bytes = DATA,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    header = magic + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join([*values, *tensors])
    return header + bytes(-len(header) % 32) + data


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], GgufFile]:
    def read(content: bytes) -> GgufFile:
        (tmp_path / "x.gguf").write_bytes(content)
        return read_gguf(str(tmp_path / "x.gguf"))

    return read


def test_what_is_written_is_read(read: Callable[[bytes], GgufFile]) -> None:
    content = whole()
    file = read(content)
    assert file.values["general.architecture"] == "llama"
    assert file.values["llama.block_count"] == 2
    assert file.values["tokens"] == ["a", "bc", "d"]
    assert file.values["types"].tolist() == [1, 1, 3]
    assert file.values["flag"] is True
    start = len(content) - len(DATA)
    one, two = file.tensors["one"], file.tensors["two"]
    assert (one.kind.name, one.shape, one.offset, one.num_bytes) == ("Q8_0", (2, 64), start, 4 * 34)
    assert (two.kind.name, two.shape, two.offset, two.num_bytes) == ("F32", (4,), start + 160, 16)
    assert len(file.bytes_of("two")) == 16


HUGE = struct.pack("<Q", 1 << 60)
FORGED: dict[str, tuple[bytes, str]] = {
    "another file": (whole(magic=b"PK\3\4"), "it is no GGUF file"),
    "another version": (whole(version=4), "its version is 4"),
    "many values": (b"GGUF" + struct.pack("<IQ", 3, 0) + HUGE, "values, and 0 bytes left"),
    "many tensors": (b"GGUF" + struct.pack("<I", 3) + HUGE + struct.pack("<Q", 0), "tensors, and 0 bytes left"),
    "a long text": (whole([value("x", 8, HUGE)]), "bytes in a text"),
    "a long array": (whole([value("x", 9, struct.pack("<I", 4) + HUGE)]), "numbers in an array"),
    "a long array of texts": (whole([value("x", 9, struct.pack("<I", 8) + HUGE)]), "texts in an array"),
    "arrays in arrays": (whole([value("x", 9, struct.pack("<IQ", 9, 1))]), "a value is of kind 9"),
    "an unknown kind of value": (whole([value("x", 77, b"")]), "a value is of kind 77"),
    "a value twice": (whole([VALUES[4], VALUES[4]]), "the value flag twice"),
    "a name of two lines": (whole([value("a\nb", 7, b"\1")]), r"it has a name 'a\\nb'"),
    "a name without end": (whole([value("a" * 257, 7, b"\1")]), "it has a name 'aaa"),
    "a tensor twice": (whole(tensors=[TENSORS[1], TENSORS[1]]), "a tensor twice"),
    "no dimensions": (whole(tensors=[tensor("x", (), 0, 0)]), "has 0 dimensions"),
    "five dimensions": (whole(tensors=[tensor("x", (1, 1, 1, 1, 1), 0, 0)]), "has 5 dimensions"),
    "a size of 0": (whole(tensors=[tensor("x", (0, 4), 0, 0)]), "has the shape"),
    "a product too large": (whole(tensors=[tensor("x", (1 << 40, 1 << 40), 0, 0)]), "has the shape"),
    "half a block": (whole(tensors=[tensor("x", (48,), 8, 0)]), "has the shape"),
    "an unknown kind of tensor": (whole(tensors=[tensor("x", (4,), 99, 0)]), "of kind 99"),
    "a kind that is not read": (whole(tensors=[tensor("x", (32,), 20, 0)]), "of kind IQ4_NL; read are F32, F16, Q4_0"),
    "beyond the end": (whole(tensors=[tensor("x", (4,), 0, 192)]), "the tensor x is 16 bytes at"),
    "not aligned": (whole(tensors=[tensor("x", (4,), 0, 8)]), "the tensor x is"),
    "over another": (whole(tensors=[TENSORS[0], tensor("x", (4,), 0, 32)]), "the tensor x is"),
    "an alignment of 0": (whole([value("general.alignment", 4, bytes(4))]), "its alignment is 0"),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_cannot_be_is_refused(case: str, read: Callable[[bytes], GgufFile]) -> None:
    content, told = FORGED[case]
    with pytest.raises(ModelLoadError, match=told):
        read(content)


def test_a_cut_file_is_refused(read: Callable[[bytes], GgufFile]) -> None:
    content = whole()
    for length in range(len(content)):
        with pytest.raises(ModelLoadError):
            read(content[:length])


def test_a_file_that_is_cut_later_is_refused(read: Callable[[bytes], GgufFile]) -> None:
    file = read(whole())
    file.path.write_bytes(whole()[:-1])
    with pytest.raises(ModelLoadError, match="ends within the tensor two"):
        file.bytes_of("two")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="No such file"):
        read_gguf(str(tmp_path / "x.gguf"))
