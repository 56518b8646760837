"""The check at the end of every load: what the pages compute wrongly is refused by name, before it serves."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.errors import ModelLoadError, UnsupportedArchitecture
from specgate.runtime.engine import self_check
from specgate.runtime.scheduler import logits_of
from tests.support.models import eager_logits, load_float32, make_runner, quiet, run_task, write_llama, write_model


def test_a_position_bias_is_refused_even_where_it_is_zero(tmp_path: Path) -> None:
    """Its numbers are right, and the next checkpoint of the same kind would be wrong."""
    loaded = load_float32(write_llama(tmp_path))
    for layer in loaded.model.model.layers:
        layer.self_attn.forward = partial(layer.self_attn.forward, position_bias=torch.zeros(1))
    with pytest.raises(UnsupportedArchitecture, match="LlamaAttention passes position_bias to attention"):
        self_check.prepare(loaded, 4096, 512, quiet, packs=False)


def test_a_difference_of_a_thousandth_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_float32(write_llama(tmp_path))
    eager = self_check._eager_logits
    monkeypatch.setattr(self_check, "_eager_logits", lambda *arguments: eager(*arguments) * 1.001)
    with pytest.raises(UnsupportedArchitecture, match=r"differ from the model's own by 1\.0e-03, the limit is 1e-04"):
        self_check.prepare(loaded, 4096, 512, quiet)


def test_a_sliding_window_that_is_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long sequence reaches past the window, or a runner without windows would pass."""
    loaded = load_float32(write_model(tmp_path, "mistral", sliding_window=300))
    eager = self_check._eager_logits

    def without_window(*arguments: Any) -> torch.Tensor:
        loaded.model.config.sliding_window = None
        try:
            return eager(*arguments)
        finally:
            loaded.model.config.sliding_window = 300

    monkeypatch.setattr(self_check, "_eager_logits", without_window)
    with pytest.raises(UnsupportedArchitecture, match="logits over KV pages differ"):
        self_check.prepare(loaded, 4096, 512, quiet)


def test_nan_weights_do_not_pass(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path))
    loaded.model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(UnsupportedArchitecture, match="NaN or infinite logits"):
        self_check.prepare(loaded, 4096, 512, quiet)


def test_a_model_that_fails_by_itself_is_not_called_unsupported(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path))
    loaded.model.lm_head.weight.data = loaded.model.lm_head.weight.data[:, 1:]
    with pytest.raises(ModelLoadError, match=r"the model's own forward fails: mat1 and mat2 shapes"):
        self_check.prepare(loaded, 4096, 512, quiet)


@pytest.mark.parametrize(
    ("context_length", "kv_tokens"), [(512, 16), (512, 513), (512, 1024), (512, 2048), (20, 64), (8, 64), (512, 70_000)]
)
def test_it_fits_into_whatever_a_service_is_given(context_length: int, kv_tokens: int, tmp_path: Path) -> None:
    folder = write_llama(tmp_path, max_position_embeddings=context_length)
    runner = make_runner(folder, kv_tokens, min(2048, context_length, kv_tokens))
    assert runner.pool.num_free == runner.pool.num_pages
    length = min(context_length, kv_tokens, 12)
    ids = list(range(length))
    logits = run_task(runner, logits_of(runner.pool.open(ids, length), 1))
    assert torch.allclose(logits[0], eager_logits(folder, [ids])[0, -1], atol=1e-4)


@pytest.mark.parametrize("page_size", [16, 256, 2048])
def test_where_the_pages_are_not_sized_yet_they_are_enough_for_windows_too(page_size: int, tmp_path: Path) -> None:
    loaded = load_float32(write_model(tmp_path, "mistral", sliding_window=3000, max_position_embeddings=4096))
    kv_tokens = self_check.kv_tokens_to_check(loaded, page_size)
    assert self_check._lengths(loaded, kv_tokens, page_size) == [3016, 37, 9]
