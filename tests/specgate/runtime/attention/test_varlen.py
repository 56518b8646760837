"""One call for all sequences, with and without graphs, gives the model's own logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenAttention, VarlenKernel
from specgate.runtime.cuda.graphs import Bucket, CudaCapturer, buckets_for
from specgate.runtime.engine.graph_check import add_graphs
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.engine.serving_path import build
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.loading import load
from specgate.runtime.scheduler import Rows, logits_of
from tests.support.models import (
    folders_of,
    load_float32,
    quiet,
    run_task,
    write_llama,
    write_model,
)
from tests.support.tape import EagerCapturer, TapeCapturer, one_operation
from tests.support.traffic import Traffic, compare_with_eager

SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES = {"llama": {}, "gemma3_text": {**SLIDING, "query_pre_attn_scalar": 8}, "gpt2": {}, "opt": {}}
VOCAB = 64
BUCKETS = [Bucket(4, 8), Bucket(2, 4), Bucket(1, 1)]
Make = Callable[..., ModelRunner]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return folders_of(tmp_path_factory, ARCHITECTURES, VOCAB)


@pytest.fixture(scope="module")
def make(folder_of: Callable[[str], Path]) -> Make:
    def runner(
        model_type: str = "llama", page_size: int = 16, attention: VarlenAttention = one_operation
    ) -> ModelRunner:
        loaded = load_float32(folder_of(model_type))
        return prepare(loaded, 4096, page_size, quiet, [VarlenKernel(attention, loaded.context_length)], packs=False)

    return runner


def opened(runner: ModelRunner, ids: list[int], room: int = 0) -> KVSequence:
    sequence = runner.pool.open(ids, len(ids) + room)
    runner.pool.extend(sequence, len(ids) + room)
    return sequence


@pytest.mark.parametrize("page_size", [16, 5, 256])
def test_ragged_rows_equal_the_eager_model(page_size: int, make: Make, folder_of: Callable[[str], Path]) -> None:
    compare_with_eager(make(page_size=page_size), folder_of("llama"))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_replayed_rows_equal_the_eager_model(model_type: str, make: Make, folder_of: Callable[[str], Path]) -> None:
    runner, tape = make(model_type), TapeCapturer()
    runner.capture(BUCKETS, tape, quiet)
    compare_with_eager(runner, folder_of(model_type))
    assert 15 < tape.num_replays < 60


@torch.inference_mode()
def test_what_is_in_no_sequence_is_not_looked_at(make: Make) -> None:
    """Pages that nobody has written to hold anything, NaN too."""
    runner = make()
    runner.capture(BUCKETS, TapeCapturer(), quiet)
    ids = list(range(21))
    expected = run_task(runner, logits_of(opened(runner, ids), 1))
    runner.resize(4096)
    for layer in runner._pages.layers.values():  # what no caller sees
        for pages in layer:
            pages.fill_(float("nan"))
    runner.capture(BUCKETS, TapeCapturer(), quiet)
    sequence = opened(runner, ids)
    runner.forward([Rows(sequence, 18, 0)])
    (logits,) = runner.forward([Rows(sequence, 3, 1)])
    assert torch.allclose(logits, expected, atol=1e-5)


def test_what_fits_no_bucket_runs_without_a_graph(make: Make) -> None:
    runner, tape = make(), TapeCapturer()
    runner.capture([Bucket(2, 4)], tape, quiet)
    sequence = opened(runner, list(range(5)))
    for num_rows, num_replays in ((5, 0), (4, 1), (1, 2)):
        sequence.num_cached = 0
        runner.forward([Rows(sequence, num_rows, 1)])
        assert tape.num_replays == num_replays
    too_long = opened(runner, list(range(4)) * 130)
    for num_rows in (len(too_long) - 1, 1):
        runner.forward([Rows(too_long, num_rows, 1)])
    assert tape.num_replays == 2
    assert runner.last_num_calls == 2


# Loading


def test_the_whole_way_from_a_loaded_model(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path))
    kernels = [VarlenKernel(one_operation, loaded.context_length), PagedSdpaKernel()]
    told: list[tuple[str, int, int]] = []
    runner = build(
        loaded, kernels, kv_tokens=None, page_size=256, max_sessions=2, capturer=TapeCapturer(), packs=False,
        progress=lambda *stage: told.append(stage),
    )  # fmt: skip
    assert runner.kernel.name == "varlen"
    assert runner.pool.num_pages * 256 == 2 * 2 * 512
    assert runner.buckets == buckets_for(2)[::-1]
    assert [done for stage, done, total in told if stage == "graphs" and total == 10] == list(range(11))
    assert runner.pool.num_free == runner.pool.num_pages


def load_with_varlen(folder: Path, attention: VarlenAttention = one_operation, kv_tokens: int = 4096) -> ModelRunner:
    kernels = [VarlenKernel(attention, 512), PagedSdpaKernel()]
    return prepare(load_float32(folder), kv_tokens, 256, quiet, kernels, packs=False)


def wrong(*arguments: Any, **options: Any) -> torch.Tensor:
    return 1.1 * one_operation(*arguments, **options)


def test_attention_that_fails_the_check_gives_way_to_the_next(tmp_path: Path, caplog: Any) -> None:
    runner = load_with_varlen(write_llama(tmp_path), wrong)
    assert runner.kernel.name == "sdpa"
    assert "attention by varlen is not used: LlamaForCausalLM: logits over KV pages differ" in caplog.text


def test_a_soft_cap_is_left_to_the_other_one(tmp_path: Path, caplog: Any) -> None:
    soft_capped = {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8, "sliding_window": 8}
    runner = load_with_varlen(write_model(tmp_path, "gemma2", **soft_capped))
    assert runner.kernel.name == "sdpa"
    assert "no place for a soft-cap" in caplog.text
    assert runner.kernel.why.startswith("varlen does not serve Gemma2ForCausalLM")


def test_a_soft_cap_is_served_by_a_kernel_that_takes_one(tmp_path: Path) -> None:
    soft_capped = {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8, "sliding_window": 8}
    loaded = load_float32(write_model(tmp_path, "gemma2", **soft_capped))
    kernel = VarlenKernel(varlen_attention, loaded.context_length, caps_scores=True)
    assert prepare(loaded, 4096, 256, quiet, [kernel, PagedSdpaKernel()]).kernel is kernel


def curious(query: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """Reads a tensor on the host."""
    return one_operation(query, *arguments, **options) if query.amax().item() < 1e9 else query


class StaleCapturer:
    """Replays nothing: the logits are those of the capture."""

    def capture(self, function: Callable[[], object]) -> Callable[[], object]:
        function()
        return lambda: None


@pytest.mark.parametrize(
    ("attention", "capturer", "reason"),
    [
        (curious, TapeCapturer(), "RuntimeError: operation not permitted"),
        (one_operation, StaleCapturer(), "UnsupportedArchitecture"),
    ],
)
def test_where_graphs_cannot_be_recorded_or_give_something_else_it_serves_without(
    attention: VarlenAttention, capturer: Any, reason: str, make: Make, caplog: Any
) -> None:
    runner = make(attention=attention)
    assert not add_graphs(runner, capturer, 2, quiet)
    assert (runner.buckets, runner.pool.num_free) == ([], runner.pool.num_pages)
    assert f"CUDA graphs are not used: {reason}" in caplog.text
    assert run_task(runner, logits_of(opened(runner, [1, 2, 3]), 1)).shape == (1, VOCAB)


def test_other_attention_cannot_be_recorded(tmp_path: Path, caplog: Any) -> None:
    runner = prepare(load_float32(write_llama(tmp_path)), 1024, 256, quiet, packs=False)
    assert not add_graphs(runner, TapeCapturer(), 2, quiet)
    assert "attention by sdpa reads numbers that a graph would freeze" in caplog.text


@pytest.mark.parametrize("num_pages", [1, 3])
def test_few_pages_are_enough_to_check_graphs_and_others_need_new_ones(num_pages: int, tmp_path: Path) -> None:
    runner = load_with_varlen(write_llama(tmp_path), kv_tokens=256 * num_pages)
    assert add_graphs(runner, EagerCapturer(), 4, quiet)
    assert runner.buckets == buckets_for(4)[::-1]
    runner.resize(1024)
    assert runner.buckets == []


# On a GPU


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = write_llama(tmp_path_factory.mktemp("gpu"), vocab_size=VOCAB, hidden=256)
    loaded = load(str(folder), torch.device("cuda"), torch.bfloat16, quiet)
    return build(
        loaded, kernels_for("varlen", loaded), kv_tokens=65_536, page_size=256, max_sessions=8,
        capturer=CudaCapturer(loaded.device), progress=quiet,
    )  # fmt: skip


@pytest.mark.gpu
@torch.inference_mode()
def test_replays_on_the_gpu_equal_the_reference(on_gpu: ModelRunner) -> None:
    kernel = VarlenKernel(varlen_attention, on_gpu.loaded.context_length)
    plain = ModelRunner(on_gpu.loaded, 65_536, 256, kernel)
    one, other = Traffic(on_gpu, seed=5), Traffic(plain, seed=5)
    for _ in range(60):
        for (ids, logits), (same_ids, expected) in zip(one.step(), other.step(), strict=True):
            assert ids == same_ids
            assert (logits - expected).norm() <= 3e-2 * expected.norm()


@pytest.mark.gpu
def test_a_greedy_text_on_the_gpu_is_the_same_with_and_without_graphs(on_gpu: ModelRunner) -> None:
    texts = []
    for use_graphs in (True, False):
        sequence = opened(on_gpu, [1, 2, 3], room=64)
        # A prompt is padded in a graph, which bfloat16 may round differently.
        on_gpu.forward([Rows(sequence, 2, 0)], use_graphs=False)
        for _ in range(64):
            rows = Rows(sequence, len(sequence) - sequence.num_cached, 1)
            ((logits,),) = on_gpu.forward([rows], use_graphs=use_graphs)
            sequence.append([int(logits.argmax())])
        texts.append(sequence.token_ids)
        on_gpu.pool.free(sequence)
    assert texts[0] == texts[1]
    assert (on_gpu.kernel.name, on_gpu.buckets) == ("varlen", buckets_for(8)[::-1])
    assert torch.cuda.get_sync_debug_mode() == 0
