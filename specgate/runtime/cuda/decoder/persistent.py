"""A whole draft in one launch, by programs that stay and meet after every phase.

They must all run at once: the launch is cooperative, and refused where they do not fit. Two such kernels at once might
each hold half of a card and wait for the other half for ever, so a process launches them from one thread to one stream;
another process's waits, or is refused.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.attention import attend
from specgate.runtime.cuda.decoder.barrier import GRID, leave, wait
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.choice import choose, write_report
from specgate.runtime.cuda.decoder.phases import down, gate_up, project_out, project_qkv
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights

NUM_WARPS = 8
"""Their registers, 255 a thread, are all that a multiprocessor has: one program is on each."""
_GRID = tl.constexpr(GRID)


def num_programs(device: torch.device, tiles: DraftTiles) -> int:
    """Return how many programs run at once. Triton's interpreter, on the CPU, runs one after the other."""
    if device.type != "cuda":
        return 1
    return min(torch.cuda.get_device_properties(device).multi_processor_count, tiles.PROGRAMS)


def launch(w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: DraftTiles) -> Any:
    """Draft as many tokens as ``b`` says."""
    programs = num_programs(u.report.device, t)
    return draft_kernel[(programs,)](w, b, u, s, t, num_warps=NUM_WARPS, launch_cooperative_grid=True)


@triton.jit
def draft_kernel(w, b, u, S: tl.constexpr, T: tl.constexpr):
    programs = tl.num_programs(0)
    met = 0
    for step in range(tl.load(b.scalars)):
        for layer in range(S.LAYERS):
            project_qkv(w, b, u, layer, step, programs, met, S, T, _GRID)
            attend(w, b, u, layer, step, met + programs, S, T, _GRID)
            project_out(w, b, u, layer, step, met + 2 * programs, S, T, _GRID)
            gate_up(w, b, u, layer, step, met + 3 * programs, S, T, _GRID)
            down(w, b, u, layer, step, met + 4 * programs, S, T, _GRID)
            met += 5 * programs
        choose(w, b, u, step, met, S, T, _GRID)
        met += programs
        # The last one has the least to do in the phase that follows.
        if tl.program_id(0) == programs - 1:
            wait(u, met, T, _GRID)
            write_report(b, u, step, programs, S, T)
    wait(u, met, T, _GRID)
    leave(u)
