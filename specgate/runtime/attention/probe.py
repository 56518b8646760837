"""A ragged batch over pages that is made up, by which a fused kernel's numbers are checked and its time is taken."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch

from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenAttention

PAGE_SIZE_UNIT = 256
"""torch's fused kernel takes pages of a multiple of so many tokens."""
_COLUMNS = 16
_NO_WINDOW = (-1, 0)
_WINDOWS = (_NO_WINDOW, (99, 0))
_TIMED_CALLS, _WARM_UPS = 20, 3
_HEAD_START_CYCLES = 20_000_000
"""Some 10 ms, in which all calls that are timed are launched: else launching would be timed."""

Call = Callable[[VarlenAttention, tuple[int, int]], torch.Tensor]
"""Calls a kernel on the batch, with a window."""


class Probe(NamedTuple):
    """Sequences with so many rows at the end of so many tokens each, 4096 at the most."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64

    def on(self, device: torch.device, dtype: torch.dtype) -> Call:
        """Return the batch as tensors: sequences that share a pool of pages, in no order."""
        generator = torch.Generator().manual_seed(0)
        num_pages = _COLUMNS * len(self.rows)
        table = torch.randperm(num_pages, generator=generator).reshape(-1, _COLUMNS).to(device, torch.int32)
        pool = (num_pages, PAGE_SIZE_UNIT, self.kv_heads, self.head_dim)
        shapes = ((sum(self.rows), self.heads, self.head_dim), pool, pool)
        # Made where they are needed: on a host the keys of many heads take seconds.
        there = torch.Generator(device).manual_seed(0)
        tensors = [torch.randn(shape, generator=there, device=device).to(dtype) for shape in shapes]
        cu_seq_q, cu_seq_k = (
            torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=device)
            for sizes in (self.rows, self.lengths)
        )
        seqused_k = torch.tensor(self.lengths, dtype=torch.int32, device=device)

        def call(attention: VarlenAttention, window: tuple[int, int]) -> torch.Tensor:
            return attention(
                *tensors, cu_seq_q, cu_seq_k, max(self.rows), _COLUMNS * PAGE_SIZE_UNIT, scale=0.125,
                window_size=window, enable_gqa=self.heads != self.kv_heads, seqused_k=seqused_k, block_table=table,
                num_splits=1,
            )  # fmt: skip

        return call


CHECKED = (Probe((5, 1, 8, 1), (700, 3, 257, 4000)), Probe((1, 1, 1, 1), (700, 3, 257, 4000)))
"""Only lone rows make a kernel split the keys, where it may."""
TIMED = (Probe((1,), (2000,)), Probe((6,), (2000,)), Probe((1,) * 8, (1000,) * 8))
"""A lone token, a verification of the usual γ, and several sessions."""


@torch.inference_mode()
def errors_of(attention: VarlenAttention, device: torch.device, dtype: torch.dtype) -> list[float]:
    """Return relative errors against the reference, with and without a window."""
    found = []
    for call in (probe.on(device, dtype) for probe in CHECKED):
        for window in _WINDOWS:
            served, expected = call(attention, window).float(), call(varlen_attention, window).float()
            found.append(float((served - expected).norm() / expected.norm()))
    return found


@torch.inference_mode()
def kernel_us(attention: VarlenAttention, probe: Probe, device: torch.device, dtype: torch.dtype) -> float:
    """Return microseconds that a call takes on a card, without launching it: as it runs in a graph."""
    call = probe.on(device, dtype)
    for _ in range(_WARM_UPS):
        call(attention, _NO_WINDOW)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_HEAD_START_CYCLES)
    start.record()
    for _ in range(_TIMED_CALLS):
        call(attention, _NO_WINDOW)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / _TIMED_CALLS
