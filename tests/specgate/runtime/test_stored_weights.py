"""A checkpoint in bfloat16 stays so in memory, and gives the bits of its float32 load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgate.errors import UnsupportedArchitecture
from specgate.runtime import stored_weights
from specgate.runtime.cpu.packing import bytes_of
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import LoadedModel, load
from specgate.runtime.scheduler import logits_of
from specgate.runtime.stored_weights import weight_of
from tests.support.architecture_runs import write_case
from tests.support.architectures import Case
from tests.support.models import quiet, run_task, write_llama

TOKEN_IDS = [i * 7 % 64 for i in range(50)]
IN_ONE_CALL: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True}),
    ("llama", {"tie_word_embeddings": True, "hidden": 40, "head_dim": 6, "intermediate_size": 49}),
    ("qwen3", {}),
]
LAYER_BY_LAYER: list[tuple[str, dict[str, Any]]] = [
    ("gemma", {"tie_word_embeddings": True}),
    ("gemma3_text", {"tie_word_embeddings": True, "query_pre_attn_scalar": 8}),
    ("gpt2", {"tie_word_embeddings": True}),
]


def shorten(folder: Path, but: str = "") -> Path:
    """Store a model's weights in bfloat16, all but one of them perhaps."""
    file = folder / "model.safetensors"
    weights = {name: weight if name == but else weight.bfloat16() for name, weight in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def loaded(folder: Path, *, keeps_stored: bool = True) -> LoadedModel:
    return load(str(folder), torch.device("cpu"), torch.float32, quiet, keeps_stored=keeps_stored)


def logits(runner: ModelRunner) -> torch.Tensor:
    return run_task(runner, logits_of(runner.pool.open(TOKEN_IDS, len(TOKEN_IDS)), 9))


@pytest.mark.parametrize(("model_type", "config"), [*IN_ONE_CALL, *LAYER_BY_LAYER])
def test_the_bits_of_float32(model_type: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = shorten(write_case(Case("", model_type, config, ""), tmp_path))
    short, wide = (prepare(loaded(folder, keeps_stored=keeps), 512, 64, quiet) for keeps in (True, False))
    assert short.kernel.name == wide.kernel.name == ("decoder" if (model_type, config) in IN_ONE_CALL else "sdpa")
    assert torch.equal(logits(short), logits(wide))


def test_they_take_half_the_memory_before_and_after_packing(tmp_path: Path) -> None:
    folder = shorten(write_llama(tmp_path, 256, hidden=128))
    short, wide = (loaded(folder, keeps_stored=keeps) for keeps in (True, False))
    assert 0.5 <= bytes_of(short.model) / bytes_of(wide.model) < 0.51
    for one in (short, wide):
        prepare(one, 512, 64, quiet)
    assert 0.5 <= bytes_of(short.model) / bytes_of(wide.model) < 0.51


@pytest.mark.parametrize("part", [64, 1 << 22])
@torch.inference_mode()
def test_without_panels_they_are_widened_a_part_at_a_time(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_weights, "WIDENED_NUMBERS", part)
    folder = shorten(write_case(Case("", "qwen2", {"tie_word_embeddings": True}, ""), tmp_path))
    short, wide = (
        loaded(folder, keeps_stored=keeps).model(torch.tensor([TOKEN_IDS])).logits for keeps in (True, False)
    )
    assert short.dtype is torch.float32
    torch.testing.assert_close(short, wide, rtol=1e-4, atol=1e-4)


def test_files_of_several_formats_are_loaded_as_float32(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    norm = "model.norm.weight"
    for but, dtype in (("", torch.bfloat16), (norm, torch.float32)):
        shorten(write_llama(folder), but)
        assert weight_of(loaded(folder).model.lm_head).dtype is dtype


def test_who_computes_with_a_weight_that_is_kept_elsewhere_is_refused(tmp_path: Path) -> None:
    """Else the model's own forward, which the serving path is compared with, would be wrong in the same way."""
    one = loaded(shorten(write_llama(tmp_path)))
    head = one.model.lm_head
    head.forward = lambda rows: torch.nn.functional.linear(rows, head.weight)
    with pytest.raises(UnsupportedArchitecture, match="NaN or infinite logits"):
        prepare(one, 512, 64, quiet, packs=False)
