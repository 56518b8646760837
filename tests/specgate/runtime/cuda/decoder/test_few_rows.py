"""Which forwards few rows' own kernels serve, how many they are, and when a model goes its own way instead.

Torch stands for the kernels; ``test_products`` looks at them.
"""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.few_rows import FewRows
from specgate.runtime.cuda.fused_layers import fuse_with
from specgate.runtime.cuda.graphs import FEW_ROWS, Bucket, buckets_for
from specgate.runtime.cuda.joined import joined_weight
from specgate.runtime.decoder_form import NotOfThisForm
from specgate.runtime.engine.few_rows import few_rows_of, keep_if_fast, serve_few_rows
from specgate.runtime.engine.graph_check import add_graphs
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.loading import load
from specgate.runtime.scheduler import Rows
from specgate.types import ForwardCost
from tests.support import torch_elementwise
from tests.support.counting import LaunchCount
from tests.support.models import eager_logits, folders_of, load_float32, quiet, write_llama, write_model
from tests.support.tape import TapeCapturer, one_operation
from tests.support.torch_few_rows import TorchFewRowKernels

KERNELS_A_LAYER = 5
KERNELS_BESIDE_LAYERS = 2
"""Budgets: rows from the embedding, and the head. Each kernel takes 2 us beside what it reads."""
JOINED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
OF_THE_HOST = {"resolve_conj", "resolve_neg", "to"}
"""What packs a batch there."""
VOCAB = 64
SALTS = itertools.count()
ARCHITECTURES: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {}}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return folders_of(tmp_path_factory, ARCHITECTURES, VOCAB)


def runner_of(folder: Path, page_size: int = 16) -> ModelRunner:
    """Return a runner whose forwards of few rows are served by operations of torch."""
    loaded = load_float32(folder)
    kernel = VarlenKernel(one_operation, loaded.context_length)
    runner = prepare(loaded, 4096, page_size, quiet, [kernel], packs=False)
    runner.call = FewRows(loaded, runner.call, TorchFewRowKernels)
    return runner


def opened(runner: ModelRunner, ids: list[int], num_cached: int) -> KVSequence:
    """Open a sequence that shares no page, and run so many of its tokens."""
    sequence = runner.pool.open(ids, len(ids), salt=str(next(SALTS)))
    runner.pool.extend(sequence, len(ids))
    runner.forward([Rows(sequence, num_cached, 0)], use_graphs=False)
    return sequence


def ids_of(length: int, step: int = 5) -> list[int]:
    return [3 + step * place % (VOCAB - 3) for place in range(length)]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("graphs", [False, True])
@torch.inference_mode()
def test_few_rows_of_several_sequences_have_the_models_own_logits(
    model_type: str, graphs: bool, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(model_type)
    runner = runner_of(folder)
    if graphs:
        assert add_graphs(runner, TapeCapturer(), 8, quiet)
    texts = [ids_of(40), ids_of(23, 7), ids_of(31, 11)]
    for widths in ((1,), (9,), (1, 5), (4, 1, 11), (16,), (9, 9)):
        batch = [Rows(opened(runner, ids, len(ids) - n), n, n) for ids, n in zip(texts, widths, strict=False)]
        for ids, n, logits in zip(texts, widths, runner.forward(batch), strict=False):
            torch.testing.assert_close(logits, eager_logits(folder, [ids])[0, -n:], rtol=1e-4, atol=1e-4)
        assert runner.last_num_calls == 2


def counted(folder: Path, num_rows: int) -> LaunchCount:
    runner = runner_of(folder)
    sequence = opened(runner, ids_of(40), 20)
    with LaunchCount("cpu") as count:
        runner.forward([Rows(sequence, num_rows, num_rows)])
    return count


def test_a_layer_takes_five_kernels(tmp_path: Path) -> None:
    folders = [write_llama(tmp_path / str(layers), layers=layers) for layers in (1, 3)]
    one, three = (
        sum(number for name, number in counted(folder, FEW_ROWS).kernels.items() if name not in OF_THE_HOST)
        for folder in folders
    )
    assert (three - one) / 2 == KERNELS_A_LAYER
    assert one - KERNELS_A_LAYER == KERNELS_BESIDE_LAYERS


def test_more_rows_are_the_models_own_matter(folder_of: Callable[[str], Path]) -> None:
    assert "embed" in counted(folder_of("llama"), FEW_ROWS).kernels
    assert "embed" not in counted(folder_of("llama"), FEW_ROWS + 1).kernels


def test_a_prompt_that_wants_no_logits_has_no_head(folder_of: Callable[[str], Path]) -> None:
    runner = runner_of(folder_of("llama"))
    sequence = opened(runner, ids_of(40), 20)
    with LaunchCount("cpu") as count:
        (logits,) = runner.forward([Rows(sequence, 4, 0)])
    assert logits.shape == (0, VOCAB)
    assert "head" not in count.kernels


def test_all_batches_of_few_rows_are_replays_of_graphs_for_them() -> None:
    """A batch that was padded to more than 16 rows would have other bits."""
    buckets = buckets_for(64, few_rows=True)[::-1]
    few = [bucket for bucket in buckets if bucket.few]
    assert buckets[: len(few)] == few == [Bucket(number, 16, few=True) for number in (1, 2, 4, 8, 16)]
    assert min(bucket.num_rows for bucket in buckets[len(few) :]) > FEW_ROWS
    assert len(buckets) < len(buckets_for(64))


@pytest.mark.parametrize("widths", [(9,), (1,) * 8, (9, 2, 1), (1, 1, 14)])
def test_a_graph_shares_its_rows_out_as_the_batch_needs_them(
    widths: tuple[int, ...], folder_of: Callable[[str], Path]
) -> None:
    runner, tape = runner_of(folder_of("llama")), TapeCapturer()
    runner.capture(buckets_for(8, few_rows=True), tape, quiet)
    batch = [Rows(opened(runner, ids_of(30, 1 + place), 30 - n), n, 1) for place, n in enumerate(widths)]
    runner.forward(batch)
    assert tape.num_replays == 1
    graph = next(one for one in runner._graphs if one.fits(batch))  # what no caller sees
    assert graph.bucket.few


@pytest.mark.parametrize("fused_first", [True, False])
def test_layers_are_joined_once_whoever_comes_first(fused_first: bool, folder_of: Callable[[str], Path]) -> None:
    """Prompts are computed with the same matrices."""
    loaded = load_float32(folder_of("llama"))
    linears = [loaded.model.get_submodule(f"model.layers.1.{name}") for name in JOINED]
    before = [linear.weight.clone() for linear in linears]

    def fuse() -> None:
        fuse_with(loaded.model, torch_elementwise)

    def make_few_rows() -> None:
        FewRows(loaded, lambda inputs: inputs.token_ids, TorchFewRowKernels)

    first, second = (fuse, make_few_rows) if fused_first else (make_few_rows, fuse)
    first()
    places = [linear.weight.data_ptr() for linear in linears]
    second()
    assert [linear.weight.data_ptr() for linear in linears] == places
    assert joined_weight(linears[:3]).data_ptr() == places[0]
    assert joined_weight(linears[:3]).equal(torch.cat(before[:3]))
    assert all(map(torch.equal, [linear.weight for linear in linears], before))


@pytest.mark.parametrize(
    ("model_type", "config", "reason"),
    [
        ("mistral", {"sliding_window": 8}, "a layer sees 8 tokens alone"),
        ("qwen2", {}, "its products have a bias"),
        ("gpt2", {}, "it is built in another way"),
        ("qwen3", {"head_dim": 24}, "it norms heads of 24 numbers"),
    ],
)
def test_other_forms_are_refused_by_what_they_do(
    model_type: str, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    loaded = load_float32(write_model(tmp_path, model_type, **config))
    with pytest.raises(NotOfThisForm, match=reason):
        FewRows(loaded, lambda inputs: inputs.token_ids, TorchFewRowKernels)


def test_float16_is_refused(folder_of: Callable[[str], Path]) -> None:
    loaded = load(str(folder_of("llama")), torch.device("cpu"), torch.float16, quiet)
    with pytest.raises(NotOfThisForm, match="float16 has no room"):
        FewRows(loaded, lambda inputs: inputs.token_ids, TorchFewRowKernels)


def test_no_other_device_looks_for_them(folder_of: Callable[[str], Path]) -> None:
    assert few_rows_of(runner_of(folder_of("llama"))) is None


def costs(*times_us: int) -> Callable[[ModelRunner], list[ForwardCost]]:
    """Return what measures: one time after the other, of up to 4 rows."""
    left = list(times_us)
    return lambda runner: [ForwardCost(1, 1), ForwardCost(4, left.pop(0)), ForwardCost(6, 1 << 20)]


@pytest.mark.parametrize(("times_us", "serves"), [((100, 109), True), ((100, 112), False), ((100, 60), True)])
def test_much_slower_ones_do_not_serve(
    times_us: tuple[int, int], serves: bool, folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    runner = runner_of(folder_of("llama"))
    tape = TapeCapturer()
    keep_if_fast(runner, tape, costs(*times_us))
    assert isinstance(runner.call, FewRows) == serves
    assert runner.buckets == []
    assert f"{times_us[1]} us, the model's own {times_us[0]}" in caplog.text


def test_what_fails_its_check_or_its_timing_gives_way(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("wrong")

    for give in (lambda r: serve_few_rows(r, r.call, failing), lambda r: keep_if_fast(r, None, failing)):
        caplog.clear()
        runner = runner_of(folder_of("llama"))
        few_rows = runner.call
        give(runner)
        assert isinstance(few_rows, FewRows)
        assert runner.call is few_rows.otherwise
        assert "forwards of few rows have no kernels of their own: ValueError: wrong" in caplog.text
