"""Weights are packed once, what they took before is given back, and torch serves where it is faster or alone."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from specgate.cpu_library import VARIABLE
from specgate.runtime.cpu import packing
from specgate.runtime.cpu.packing import COMPARED_ROWS, LEAST_TIMED_NUMBERS, bytes_of, is_torch_faster, pack_layers
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.runtime.scheduler import logits_of
from tests.support.models import load_float32, make_runner, quiet, run_task, write_llama

LARGE, SMALL = torch.empty(LEAST_TIMED_NUMBERS // 256, 256), torch.empty(8, 4)


def timer(torch_us: dict[int, float]) -> Callable[[bool, int], float]:
    """What takes so long with torch by the number of rows, or 90 µs; over panels 100 µs."""
    return lambda is_torch, num_rows: torch_us.get(num_rows, 90.0) if is_torch else 100.0


@pytest.mark.parametrize(
    ("torch_us", "expected"),
    [({}, True), ({1: 96.0}, False), ({8: 400.0}, False), (dict.fromkeys(COMPARED_ROWS, 96.0), False)],
)
def test_torch_serves_where_it_is_clearly_faster_at_every_width(torch_us: dict[int, float], expected: bool) -> None:
    assert is_torch_faster([LARGE], timer(torch_us)) is expected


def test_weights_that_are_all_small_are_not_timed() -> None:
    assert not is_torch_faster([SMALL], timer({}))


def test_where_torch_is_faster_nothing_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "is_torch_faster", lambda weights: True)
    runner = make_runner(write_llama(tmp_path))
    assert runner.kernel.name == "sdpa"
    assert not any(map(packing.panels_of, runner.loaded.model.modules()))


@pytest.mark.parametrize("tied", [False, True])
def test_the_other_copy_is_given_back(tied: bool, tmp_path: Path) -> None:
    model = load_float32(write_llama(tmp_path, tie_word_embeddings=tied)).model
    before = bytes_of(model)
    assert before == sum(one.nbytes for one in model.parameters())
    packed = [weakref.ref(layer.weight) for layer in model.modules() if type(layer) is nn.Linear]
    assert pack_layers(model)
    gc.collect()
    # Stand-ins for the weights are a number each.
    assert before <= bytes_of(model) < 1.01 * before
    assert [one() for one in packed] == [None] * len(packed)


def test_where_the_library_is_not_wanted_torch_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_llama(tmp_path)
    panels = make_runner(folder)
    monkeypatch.setenv(VARIABLE, "none")
    runner = prepare(load_float32(folder), 4096, 512, quiet)
    assert (panels.kernel.name, runner.kernel.name) == ("decoder", "sdpa")
    found = [run_task(one, logits_of(one.pool.open([1, 2, 3], 3), 1)) for one in (panels, runner)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells of mapped files on Linux alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_no_file_stays_mapped_for_what_was_not_packed(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    load_float32(folder).model.to(dtype).save_pretrained(folder)
    model = load(str(folder), torch.device("cpu"), torch.float32, quiet, keeps_stored=True).model
    tokens = torch.tensor([[1, 2, 3]])
    expected = model(tokens).logits
    assert str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert pack_layers(model)
    gc.collect()
    assert str(folder) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    torch.testing.assert_close(model(tokens).logits, expected)
