"""GGUF files with bytes changed, put in and cut: a model, or one error of ours, in memory that its size allows."""

import re
import struct
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import strategies as st

from specgate.errors import ModelLoadError
from specgate.gguf.configuration import configuration
from specgate.gguf.file import read_gguf
from specgate.gguf.vocabulary import tokenizer_of
from specgate.runtime.gguf_model import load_gguf_model
from tests.support.fuzzing import Budget, FuzzCounts
from tests.support.gguf_files import write_gguf
from tests.support.services import PAIR

pytestmark = pytest.mark.fuzz

SURFACE = "GGUF files"
ROOM_KB = 48 << 10
"""What a model of any size takes, and what the allocator holds back."""
TIMES_ITS_SIZE = 8
ODD = (0, 1, 2, 3, 8, 9, 12, 127, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
PIECES = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-float(i) for i in range(4096)],
    "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    written = []
    for kind, changes in (("Q8_0", {}), ("F16", {}), ("Q4_1", PIECES)):
        write_gguf(path, PAIR / "draft", kind, **changes)
        written.append(path.read_bytes())
    return written


def changed(content: bytes, random: Random) -> bytes:
    """Change a few places: most are lengths, counts, kinds and names, not the vocabulary and the weights between."""
    data = bytearray(content)
    header = read_header_size(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        near = random.choice((2000, header, len(data)))
        at = random.choice((random.randrange(min(near, len(data))), max(0, header - random.randrange(1, 3000))))
        odd = random.choice(ODD)
        match random.randrange(5):
            case 0:
                data[at : at + 1] = random.randbytes(1)
            case 1:
                data[at : at + 8] = struct.pack("<Q", odd)
            case 2:
                data[at : at + 4] = struct.pack("<I", odd % (1 << 32))
            case 3:
                del data[at : at + random.choice((1, 4, 8, len(data)))]
            case 4:
                data[at:at] = random.randbytes(random.choice((1, 4, 8, 4096)))
    return bytes(data)


def read_header_size(content: bytes) -> int:
    """Return where the tensors' places end: the last one's name is in the header once."""
    return content.rindex(b"output_norm.weight") + 64


def memory_kb(name: str) -> int:
    """Return "VmRSS", what this process holds, or "VmHWM", the most that it held."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def check(path: Path, content: bytes, counts: FuzzCounts) -> None:
    """Fail unless a file is read, or refused by one line of ours, within its memory."""
    path.write_bytes(content)
    # The most that the process held is counted anew from here.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_kb("VmRSS")
    told = ""
    try:
        file = read_gguf(str(path))
        config = configuration(file)
        tokenizer_of(file)
        load_gguf_model(file, config, torch.float32, keeps_stored=True)
    except ModelLoadError as error:
        told = str(error)
    counts.done += not told
    assert "\n" not in told
    taken = memory_kb("VmHWM") - before
    assert taken < TIMES_ITS_SIZE * len(content) // 1024 + ROOM_KB


@pytest.mark.timeout(900)
def test_no_file_is_a_fault_of_ours(files: list[bytes], tmp_path: Path, fuzz_budget: Budget) -> None:
    counts, path = fuzz_budget.of(SURFACE), tmp_path / "x.gguf"
    for content in files:
        check(path, content, counts)
    assert counts.done == len(files)

    def one(number: int) -> None:
        random = Random(number)
        check(path, changed(random.choice(files), random), counts)

    fuzz_budget.fuzz(SURFACE, st.integers(0, 1 << 62), one)
