"""A GGUF file's model is the one that llama.cpp's own library reads from it: the same numbers, to the bit."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.errors import InvalidArgument, ModelLoadError
from specgate.gguf.file import read_gguf
from specgate.runtime.cpu.packing import bytes_of, pack_layers
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.scheduler import logits_of
from tests.support.gguf_files import KINDS, write_gguf
from tests.support.models import quiet, run_task, write_llama, write_model
from tests.support.stored_models import IDS, expect_alike, expect_same_numbers, load_cpu

SHAPE = {"hidden": 256, "vocab_size": 100, "eos_token_id": 2, "bos_token_id": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), **SHAPE)


@pytest.mark.parametrize("keeps_stored", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_numbers_of_its_definition(
    kind: str, keeps_stored: bool, source: Path, tmp_path: Path
) -> None:
    expected = write_gguf(tmp_path / "x.gguf", source, kind)
    loaded = load_cpu(tmp_path / "x.gguf", keeps_stored=keeps_stored)
    expect_same_numbers(loaded.model, expected)
    expect_alike(loaded.model, expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "BF16"])
def test_what_is_served_says_what_the_same_numbers_in_float32_say(kind: str, tied: bool, tmp_path: Path) -> None:
    source = write_llama(tmp_path, tie_word_embeddings=tied, **SHAPE)
    write_gguf(tmp_path / "x.gguf", source, kind)
    runners = [
        prepare(load_cpu(tmp_path / "x.gguf", keeps_stored=stored), 4096, 512, quiet) for stored in (False, True)
    ]
    assert [one.kernel.name for one in runners] == ["decoder", "decoder"]
    found = [run_task(one, logits_of(one.pool.open(IDS, len(IDS)), 1)) for one in runners]
    assert torch.equal(*found)


@pytest.mark.parametrize(("kind", "share"), [("Q8_0", 0.30), ("Q4_0", 0.20), ("Q4_1", 0.20), ("BF16", 0.52)])
def test_they_stay_short_in_memory(kind: str, share: float, source: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", source, kind)
    model = load_cpu(tmp_path / "x.gguf", keeps_stored=True).model
    assert pack_layers(model)
    assert bytes_of(model) < share * bytes_of(load_cpu(tmp_path / "x.gguf").model)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_other_architectures(model_type: str, tmp_path: Path) -> None:
    source = write_model(tmp_path, model_type, **SHAPE)
    expected = write_gguf(tmp_path / "x.gguf", source, "Q8_0")
    loaded = load_cpu(tmp_path / "x.gguf", keeps_stored=True)
    expect_alike(loaded.model, expected)


def test_llama_3_1_has_frequencies_of_its_own(source: Path, tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "x.gguf", source, "Q8_0", [1.0 + i / 4 for i in range(32)])
    loaded = load_cpu(tmp_path / "x.gguf", keeps_stored=True)
    expect_alike(loaded.model, expected)


def test_another_dtype_is_widened_and_rounded(source: Path, tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "x.gguf", source, "Q8_0")
    loaded = load_cpu(tmp_path / "x.gguf", torch.bfloat16, keeps_stored=True)
    assert {one.dtype for one in loaded.model.parameters()} == {torch.bfloat16}
    weight = loaded.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(weight, expected.model.layers[0].mlp.up_proj.weight.bfloat16())


def renamed(one: bytes, other: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(one, other)


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "an architecture": (renamed(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba"), "its architecture is 'mamba'"),
    "a missing size": (renamed(b"llama.block_count", b"llama.block_cOUNT"), "llama.block_count is missing"),
    "a missing tensor": (renamed(b"blk.1.ffn_up.", b"blk.1.ffn_UP."), "ffn_UP.weight has no place"),
    "a tensor without a place": (renamed(b"blk.0.attn_q.", b"blk.0.attn_X."), "attn_X.weight has no place"),
    "a layer too many": (renamed(b"blk.1.attn_q.", b"blk.7.attn_q."), "blk.7.attn_q.weight has no place"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_together_is_named(case: str, source: Path, tmp_path: Path) -> None:
    change, told = BROKEN[case]
    write_gguf(tmp_path / "x.gguf", source, "Q8_0")
    (tmp_path / "y.gguf").write_bytes(change((tmp_path / "x.gguf").read_bytes()))
    with pytest.raises(ModelLoadError, match=told):
        load_cpu(tmp_path / "y.gguf")


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "more layers than tensors": ({"llama.block_count": 3}, "there are no tensors for 3 layers"),
    "layers without end": ({"llama.block_count": 1 << 23}, "there are no tensors for 8388608 layers"),
    "a size that is no number": ({"llama.embedding_length": math.nan}, "embedding_length is no number"),
    "positions scaled by default": ({"llama.rope.scale_linear": 4.0}, "scaled by 'linear'"),
    "another width": ({"llama.feed_forward_length": 64}, "where .* is needed"),
    "no layers": ({"llama.block_count": 0}, "sizes that cannot be"),
    "scaled positions": ({"llama.rope.scaling.type": "yarn"}, "scaled by 'yarn'"),
    "a part of each head": ({"llama.rope.dimension_count": 8}, "a part of each head"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_values_that_do_not_fit_are_named(case: str, source: Path, tmp_path: Path) -> None:
    changes, told = CHANGED[case]
    write_gguf(tmp_path / "x.gguf", source, "Q8_0", **changes)
    with pytest.raises(ModelLoadError, match=told):
        load_cpu(tmp_path / "x.gguf")


def test_a_scale_that_is_no_number_is_named(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, source, "Q8_0")
    content, place = bytearray(path.read_bytes()), read_gguf(str(path)).tensors["blk.0.attn_q.weight"].offset
    content[place : place + 2] = b"\xff\x7f"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"blk.0.attn_q.weight has scales that are no numbers"):
        load_cpu(path)


def test_layers_cannot_be_left_out(source: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", source, "Q8_0")
    with pytest.raises(InvalidArgument, match="skip"):
        load_cpu(tmp_path / "x.gguf", skip="skip.json")
