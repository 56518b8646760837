"""One step of a draft by a kernel a phase, for a graph that is replayed for each token: what the whole in one launch is
compared with, and what serves where that does not.

Which step it is stands on the device, and the last kernel counts on. So nothing is read between the replays.
"""

from functools import partial
from typing import Any

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.barrier import NONE, PDL, begin, wait
from specgate.runtime.cuda.decoder.buffers import Batch, Work
from specgate.runtime.cuda.decoder.choice import choose, tell
from specgate.runtime.cuda.decoder.persistent import NUM_WARPS
from specgate.runtime.cuda.decoder.phases import attend, down, gate_up, project_out, project_qkv
from specgate.runtime.cuda.decoder.shape import Shape, Tiles
from specgate.runtime.cuda.decoder.weights import Weights


def launch(w: Weights, b: Batch, u: Work, s: Shape, t: Tiles, *, early: bool) -> None:
    """Draft one token of each sequence.

    Args:
        early: let a kernel begin, and read its weights, before the one before it has ended.
    """
    for kernel, grid, *where in kernels_of(s, t):
        kernel[(grid,)](w, b, u, *where, s, t, PDL if early else NONE, **options(early=early))


def options(*, early: bool) -> dict[str, Any]:
    """Return how kernels are compiled: warps as of the persistent one, so that sums are alike, and all registers."""
    return {"num_warps": NUM_WARPS, "maxnreg": 255, **({"launch_pdl": True} if early else {})}


def kernels_of(s: Shape, t: Tiles) -> list[tuple[Any, ...]]:
    """Return a step's kernels in order, each with its number of programs and its own arguments."""

    def programs(num_outputs: int, tile: int) -> int:
        return min(t.PROGRAMS, triton.cdiv(num_outputs, tile))

    pairs = (s.HEADS + 2 * s.KV_HEADS) * s.DIM // 2
    of_head = programs(s.VOCAB, t.HEAD)
    layer = [
        (qkv_kernel, programs(pairs, t.QKV), of_head),
        (attend_kernel, programs(s.SEQUENCES * s.KV_HEADS * t.PARTS, 1)),
        (out_kernel, programs(s.HIDDEN, t.OUT)),
        (gate_kernel, programs(s.FFN, t.GATE)),
        (down_kernel, programs(s.HIDDEN, t.DOWN)),
    ]
    layers = [(kernel, grid, number, *rest) for number in range(s.LAYERS) for kernel, grid, *rest in layer]
    return [*layers, (head_kernel, of_head), (tell_kernel, 1, of_head)]


# A layer's number must not make a kernel of its own.
_kernel = partial(triton.jit, do_not_specialize=["layer", "head_programs"])


@_kernel
def qkv_kernel(w, b, u, layer, head_programs, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    project_qkv(w, b, u, layer, tl.load(b.scalars + 1), head_programs, 0, S, T, SYNC)


@_kernel
def attend_kernel(w, b, u, layer, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    attend(w, b, u, layer, tl.load(b.scalars + 1), 0, S, T, SYNC)


@_kernel
def out_kernel(w, b, u, layer, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    project_out(w, b, u, layer, tl.load(b.scalars + 1), 0, S, T, SYNC)


@_kernel
def gate_kernel(w, b, u, layer, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    gate_up(w, b, u, layer, tl.load(b.scalars + 1), 0, S, T, SYNC)


@_kernel
def down_kernel(w, b, u, layer, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    down(w, b, u, layer, tl.load(b.scalars + 1), 0, S, T, SYNC)


@_kernel
def head_kernel(w, b, u, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    choose(w, b, u, tl.load(b.scalars + 1), 0, S, T, SYNC)


@_kernel
def tell_kernel(w, b, u, head_programs, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    begin(SYNC)
    step = tl.load(b.scalars + 1)
    wait(u, 0, T, SYNC)
    tell(b, u, step, head_programs, S, T)
    tl.store(b.scalars + 1, step + 1)
