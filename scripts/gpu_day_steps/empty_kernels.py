"""Kernels that do nothing but wait for each other: what a dependent phase costs at the least."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.barrier import GRID, NONE, PDL, arrive, begin, leave, wait
from specgate.runtime.cuda.decoder.shape import DraftTiles

_GRID = tl.constexpr(GRID)


class Meeting(NamedTuple):
    """What programs meet at, see ``decoder.buffers.Work``."""

    report: torch.Tensor
    barrier: torch.Tensor


def meeting(device: torch.device) -> Meeting:
    """Return a place to meet at."""
    return Meeting(torch.zeros(1, device=device), torch.zeros(2, dtype=torch.int32, device=device))


def meet(place: Meeting, programs: int, phases: int, warps: int) -> Any:
    """Let so many programs meet so often, in one launch."""
    return _meet[(programs,)](place, phases, DraftTiles(), num_warps=warps, launch_cooperative_grid=True)


def chain(place: Meeting, programs: int, phases: int, *, early: bool) -> None:
    """Launch so many kernels, one behind the other; ``early``: each begins before the one before it has ended."""
    options = {"launch_pdl": True} if early else {}
    for _ in range(phases):
        _empty[(programs,)](place, DraftTiles(), PDL if early else NONE, **options)


@triton.jit(do_not_specialize=["phases"])
def _meet(u, phases, T: tl.constexpr):
    for phase in range(phases):
        arrive(u, _GRID)
        wait(u, (phase + 1) * tl.num_programs(0), T, _GRID)
    leave(u)


@triton.jit
def _empty(u, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    wait(u, 0, T, SYNC)
