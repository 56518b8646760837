"""Which attention serves: asked for, to be had, and right."""

import sys
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch

from specgate.errors import InvalidArgument
from specgate.runtime.attention.kernels import (
    FusedAttention,
    NoFusedAttention,
    faster,
    first_right,
    fused_attention,
    kernels_for,
    torch_varlen,
    ways_to_call,
)
from specgate.runtime.attention.probe import Probe
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenAttention
from specgate.runtime.loading import LoadedModel
from tests.support.models import load_float32, skip_without_varlen, write_llama

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_float32(write_llama(tmp_path_factory.mktemp("llama")))


def loaded_on_cuda(loaded: LoadedModel, dtype: torch.dtype = torch.bfloat16) -> LoadedModel:
    return replace(loaded, device=torch.device("cuda"), dtype=dtype)


def test_the_cpu_has_one_way_and_what_cannot_be_had_is_refused_by_name(loaded: LoadedModel) -> None:
    for attention in ("auto", "sdpa"):
        assert [kernel.name for kernel in kernels_for(attention, loaded)] == ["sdpa"]
    with pytest.raises(InvalidArgument, match="--attention: varlen cannot be had here: it needs a CUDA device"):
        kernels_for("varlen", loaded)


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton", "specgate.runtime.attention.paged_triton"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_triton")
def test_on_a_gpu_what_is_asked_for_is_tried_and_what_is_left_to_us_falls_back(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    on_cuda = loaded_on_cuda(loaded, torch.float32)
    with pytest.raises(InvalidArgument, match=r"varlen cannot be had here: varlen_attn needs .*; Triton cannot be"):
        kernels_for("varlen", on_cuda)
    assert [kernel.name for kernel in kernels_for("auto", on_cuda)] == ["sdpa"]
    assert "attention by varlen is not used: varlen_attn needs --dtype bfloat16 or float16; Triton" in caplog.text


def test_where_it_is_right_it_is_the_first_choice(loaded: LoadedModel) -> None:
    def find(_: LoadedModel) -> FusedAttention:
        return FusedAttention("a kernel", varlen_attention)

    told = [(kernel.name, kernel.why) for kernel in kernels_for("auto", loaded_on_cuda(loaded), find)]
    assert told == [("varlen", "a kernel"), ("sdpa", "")]
    assert [kernel.name for kernel in kernels_for("varlen", loaded_on_cuda(loaded), find)] == ["varlen"]


# What torch has, by version: signatures as released, numbers by the reference.


def of_torch_2_11(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
    *, return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:  # fmt: skip
    raise AssertionError("it reads no pages")


def of_torch_2_13(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
    *, return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False, seqused_k: Any = None, block_table: Any = None, num_splits: int | None = None,
) -> torch.Tensor:  # fmt: skip
    return varlen_attention(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size,
        enable_gqa=enable_gqa, seqused_k=seqused_k, block_table=block_table,
    )  # fmt: skip


@wraps(of_torch_2_13)
def of_torch_2_12(*arguments: Any, **options: Any) -> torch.Tensor:
    """The arguments are those of 2.13; FlashAttention 2, which it has, refuses one and asks for another."""
    if options.get("num_splits") is not None:
        raise RuntimeError("num_splits is only supported with FlashAttention 3")
    if arguments[4] is None:
        raise RuntimeError("cu_seq_k is needed")
    return of_torch_2_13(*arguments, **options)


@wraps(of_torch_2_13)
def of_torch_2_14_without_cu_seq_k(*arguments: Any, **options: Any) -> torch.Tensor:
    if arguments[4] is not None:
        raise RuntimeError("cu_seq_k does not go with a block table")
    return of_torch_2_13(*arguments, **options)


def test_what_serves_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for released, told in (
        (of_torch_2_12, " without num_splits"),
        (of_torch_2_13, ", num_splits=1"),
        (of_torch_2_14_without_cu_seq_k, ", num_splits=1"),
    ):
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", released)
        way = first_right(ways_to_call(torch_varlen()), CPU, torch.bfloat16)
        assert way.description == f"varlen_attn of torch {torch.__version__}{told}"


@pytest.mark.usefixtures("no_triton")
def test_an_older_torch_has_no_pages_or_no_kernel_and_sdpa_says_so(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", of_torch_2_11)
    (kernel,) = kernels_for("auto", loaded_on_cuda(loaded))
    reason = f"varlen_attn of torch {torch.__version__} has no block_table, enable_gqa, seqused_k"
    assert kernel.name == "sdpa"
    assert kernel.why.startswith(f"varlen cannot be had here: {reason}; Triton cannot be imported: ")
    assert reason in caplog.text
    with pytest.raises(InvalidArgument, match="--attention: varlen cannot be had here: varlen_attn"):
        kernels_for("varlen", loaded_on_cuda(loaded))
    monkeypatch.delattr("torch.nn.attention.varlen.varlen_attn")
    with pytest.raises(NoFusedAttention, match=r"torch .* has no varlen_attn"):
        torch_varlen()


def aligned_at_the_start(*arguments: Any, window_size: tuple[int, int], **options: Any) -> torch.Tensor:
    """Causal as SDPA's own ``is_causal``: a sequence's first row sees its first token alone."""
    query, key, value, cu_seq_q, *rest = arguments
    out = torch.empty_like(query)
    for i, (first, end) in enumerate(zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False)):
        own = {**options, "seqused_k": torch.arange(1, end - first + 1, dtype=torch.int32)}
        own["block_table"] = options["block_table"][i].expand(end - first, -1)
        each = torch.arange(end - first + 1, dtype=torch.int32)
        out[first:end] = varlen_attention(query[first:end], key, value, each, *rest, window_size=window_size, **own)
    return out


def without_windows(*arguments: Any, **options: Any) -> torch.Tensor:
    return varlen_attention(*arguments, **{**options, "window_size": (-1, 0)})


def refuses(*arguments: Any, **options: Any) -> torch.Tensor:
    raise RuntimeError("no such backend.\nand more")


def forgets_all_but_the_first_where_it_splits(*arguments: Any, **options: Any) -> torch.Tensor:
    """Splits lone rows, as kernels do, and leaves the rows of later sequences as they were (pytorch issue 194167)."""
    out = varlen_attention(*arguments, **options)
    return out if arguments[5] > 1 else out * (torch.arange(len(out)) == 0)[:, None, None]


def leaves_lone_rows_unwritten(*arguments: Any, **options: Any) -> torch.Tensor:
    out = varlen_attention(*arguments, **options)
    return out if arguments[5] > 1 else torch.full_like(out, torch.nan)


WRONG: dict[str, tuple[VarlenAttention, str]] = {
    "aligned at the start": (aligned_at_the_start, "its numbers are off by"),
    "no windows": (without_windows, "its numbers are off by"),
    "split, forgets": (forgets_all_but_the_first_where_it_splits, "its numbers are off by"),
    "unwritten": (leaves_lone_rows_unwritten, "its numbers are off by nan"),
    "refuses": (refuses, "^no such backend.$"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_out(name: str) -> None:
    attention, reason = WRONG[name]
    with pytest.raises(NoFusedAttention, match=reason):
        first_right(ways_to_call(attention), CPU, torch.bfloat16)


def test_in_the_reference_a_row_before_a_sequences_first_token_sees_nothing() -> None:
    value, (cu_seq_q, seqused_k) = torch.randn(1, 4, 1, 8), (torch.tensor(x, dtype=torch.int32) for x in ([0, 3], [1]))
    out = varlen_attention(
        torch.randn(3, 1, 8), value, value, cu_seq_q, None, 3, 4, scale=1.0, window_size=(-1, 0), enable_gqa=True,
        seqused_k=seqused_k, block_table=torch.zeros(1, 1, dtype=torch.int32),
    )  # fmt: skip
    assert torch.allclose(out, torch.cat([torch.zeros(2, 1, 8), value[0, :1]]))


@pytest.mark.parametrize(
    ("us", "told"),
    [
        ({"torch's": 20.0, "ours": 10.0}, "ours: 30 us, torch's 60"),
        ({"torch's": 20.0, "ours": 19.0}, "torch's: 60 us, ours 57"),
        ({"ours": 10.0}, "ours: 30 us"),
        ({}, "torch's"),
    ],
    ids=["clearly faster", "hardly faster", "the first refuses these heads", "none can be timed"],
)
def test_of_two_that_are_right_the_faster_one_serves_and_both_times_are_told(
    us: dict[str, float], told: str, loaded: LoadedModel
) -> None:
    ways = [FusedAttention("torch's", varlen_attention), FusedAttention("ours", refuses)]
    timed: list[Probe] = []

    def kernel_us(attention: VarlenAttention, probe: Probe, *_: Any) -> float:
        timed.append(probe)
        return us["ours" if attention is refuses else "torch's"]

    assert faster(ways, loaded, kernel_us).description == told
    assert {(probe.heads, probe.kv_heads, probe.head_dim) for probe in timed} == {(4, 2, 8)}


def test_heads_that_a_configuration_does_not_tell_are_not_timed(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(loaded.model.config), "get_text_config", lambda self: object())
    ways = [FusedAttention("torch's", varlen_attention), FusedAttention("ours", refuses)]
    assert faster(ways, loaded, lambda *_: 1.0) == ways[0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_gpu_has_a_fused_kernel_for_every_number_format(loaded: LoadedModel, dtype: torch.dtype) -> None:
    """Torch's is right too where it can be had, and timed against ours."""
    told = fused_attention(loaded_on_cuda(loaded, dtype)).description
    if dtype is not torch.float32:
        skip_without_varlen()
        assert " us, " in told
