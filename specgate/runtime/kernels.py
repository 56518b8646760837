"""Which way to compute attention serves a model: what was asked for, what torch and the device have, what is right."""

import importlib
import inspect
import itertools
import logging
from collections.abc import Iterator
from collections.abc import Sequence as List
from functools import partial
from typing import Any

import torch

from specgate.errors import InvalidArgument
from specgate.runtime.attention import Kernel, wait_for
from specgate.runtime.loading import LoadedModel
from specgate.runtime.one_page import twins_are_faster
from specgate.runtime.spans import SpanKernel
from specgate.runtime.varlen import VarlenAttention, VarlenKernel
from specgate.runtime.varlen_reference import varlen_attention

PAGE_SIZE_UNIT = 256
"""torch's fused kernel takes pages of a multiple of so many tokens."""
_FUSED_DTYPES = (torch.bfloat16, torch.float16)
_NEEDED = frozenset({"seqused_k", "block_table", "num_splits", "enable_gqa", "window_size"})
_PROBE_TOLERANCE = 2e-2
_PROBE_WINDOWS = ((-1, 0), (99, 0))
_log = logging.getLogger(__name__)


class _NotHere(Exception):
    """Says why the fused attention cannot be used."""


def kernels_for(attention: str, loaded: LoadedModel) -> list[Kernel]:
    """Return the ways to compute attention that may serve ``loaded``, the most wanted first.

    Args:
        attention: "auto", "varlen" or "sdpa".

    Raises:
        InvalidArgument: "varlen" where it cannot be had.
    """
    spans = SpanKernel(has_twins=twins_are_faster(loaded.device, loaded.dtype))
    if attention == "sdpa" or (attention == "auto" and loaded.device.type == "cpu"):
        return [spans]
    try:
        kernel = VarlenKernel(_fused_attention(loaded), loaded.context_length)
    except _NotHere as error:
        if attention == "varlen":
            raise InvalidArgument("--attention", f"varlen cannot be had here: {error}") from error
        _log.warning("attention by varlen is not used: %s", error)
        return [spans]
    return [kernel] if attention == "varlen" else [kernel, spans]


def _fused_attention(loaded: LoadedModel) -> VarlenAttention:
    """Return torch's kernel, called in a way that gave the right numbers on this device just now."""
    if loaded.device.type != "cuda":
        raise _NotHere("it needs a CUDA device")
    if loaded.dtype not in _FUSED_DTYPES:
        raise _NotHere("it needs --dtype bfloat16")
    return first_right(ways_to_call(_torch_varlen()), loaded.device, loaded.dtype)


def _torch_varlen() -> Any:
    """Return ``varlen_attn`` if it has what we need; versions differ, so its signature is asked."""
    try:
        attention = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError) as error:
        raise _NotHere(f"torch {torch.__version__} has no varlen_attn") from error
    if missing := _NEEDED - inspect.signature(attention).parameters.keys():
        raise _NotHere(f"varlen_attn of torch {torch.__version__} has no {', '.join(sorted(missing))}")
    return attention


def ways_to_call(attention: VarlenAttention) -> list[VarlenAttention]:
    """Return ``attention`` as it is, and without ``cu_seq_k``: with a block table some backends ask for it, some
    refuse it, and none needs it."""
    return [attention, partial(_without_cu_seq_k, attention)]


def _without_cu_seq_k(attention: VarlenAttention, *arguments: Any, **options: Any) -> torch.Tensor:
    query, key, value, cu_seq_q, _, *bounds = arguments
    return attention(query, key, value, cu_seq_q, None, *bounds, **options)


def first_right(ways: List[VarlenAttention], device: torch.device, dtype: torch.dtype) -> VarlenAttention:
    """Return the first that computes what the reference does, aligned at the end of each sequence."""
    reasons = []
    for attention in ways:
        try:
            error = max(_errors(attention, device, dtype))
        except (RuntimeError, TypeError, ValueError) as refusal:
            reasons.append(str(refusal).partition("\n")[0])
            wait_for(device)
            continue
        if error <= _PROBE_TOLERANCE:
            return attention
        reasons.append(f"its numbers are off by {error:.1e}")
    raise _NotHere("; ".join(reasons))


@torch.inference_mode()
def _errors(attention: VarlenAttention, device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Yield relative errors over ragged sequences that share a pool of pages, with and without a window."""
    rows, lengths, heads, kv_heads, head_dim, num_columns = (5, 1, 8, 1), (700, 3, 257, 4000), 4, 2, 64, 16
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(num_columns * len(rows), generator=generator).reshape(len(rows), num_columns)
    pool = (num_columns * len(rows), PAGE_SIZE_UNIT, kv_heads, head_dim)
    shapes = ((sum(rows), heads, head_dim), pool, pool)
    tensors = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    for window in _PROBE_WINDOWS:
        call = partial(
            _call, tensors=tensors, rows=rows, lengths=lengths, table=table.to(device, torch.int32), window=window
        )
        served, expected = call(attention).float(), call(varlen_attention).float()
        yield float((served - expected).norm() / expected.norm())


def _call(
    attention: VarlenAttention,
    tensors: List[torch.Tensor],
    rows: tuple[int, ...],
    lengths: tuple[int, ...],
    table: torch.Tensor,
    window: tuple[int, int],
) -> torch.Tensor:
    cu_seq_q, cu_seq_k = (
        torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=table.device)
        for sizes in (rows, lengths)
    )
    return attention(
        *tensors,
        cu_seq_q,
        cu_seq_k,
        max(rows),
        table.shape[1] * PAGE_SIZE_UNIT,
        scale=0.125,
        window_size=window,
        enable_gqa=True,
        seqused_k=torch.tensor(lengths, dtype=torch.int32, device=table.device),
        block_table=table,
        num_splits=1,
    )
