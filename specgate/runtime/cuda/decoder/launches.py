"""One step of a draft, a kernel a phase, for a graph that is replayed for each token.

Which step it is stands on the device, and the last kernel counts on. So nothing is read between the replays.
"""

from typing import Any

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.attention import attend
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.choice import choose, write_report
from specgate.runtime.cuda.decoder.columns import wait
from specgate.runtime.cuda.decoder.phases import down, gate_up, project_out, project_qkv
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights

NUM_WARPS = 8
PHASES = ("qkv", "attend", "out", "gate_up", "down", "choose", "report")
"""The first five are a layer's."""


def launch(w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: DraftTiles, *, early: bool) -> None:
    """Draft one token of each sequence.

    Args:
        early: let a kernel begin, and read its weights, before the one before it has ended: programmatic dependent
            launch, which a card has from compute capability 9.0 on.
    """
    for layer in range(s.LAYERS):
        for phase in PHASES[:5]:
            launch_phase(phase, layer, w, b, u, s, t, early=early)
    for phase in PHASES[5:]:
        launch_phase(phase, 0, w, b, u, s, t, early=early)


def launch_phase(
    phase: str,
    layer: int,
    w: StackedWeights,
    b: DraftBatch,
    u: Workspace,
    s: DecoderShape,
    t: DraftTiles,
    *,
    early: bool,
) -> Any:
    """Launch one kernel."""
    programs, of_head = (_num_programs(name, s, t) for name in (phase, "choose"))
    # Else the compiler stops at 128 registers a thread, and the choice spills.
    options: dict[str, Any] = {"num_warps": NUM_WARPS, "maxnreg": 255, **({"launch_pdl": True} if early else {})}
    return phase_kernel[(programs,)](w, b, u, layer, of_head, PHASES.index(phase), s, t, early, **options)


def _num_programs(phase: str, s: DecoderShape, t: DraftTiles) -> int:
    tiles = {
        "qkv": triton.cdiv((s.HEADS + 2 * s.KV_HEADS) * s.DIM // 2, t.QKV),
        "attend": s.SEQUENCES * s.KV_HEADS * t.PARTS,
        "out": triton.cdiv(s.HIDDEN, t.OUT),
        "gate_up": triton.cdiv(s.FFN, t.GATE),
        "down": triton.cdiv(s.HIDDEN, t.DOWN),
        "choose": triton.cdiv(s.VOCAB, t.HEAD),
        "report": 1,
    }
    return min(t.PROGRAMS, tiles[phase])


# A layer's number must not make a kernel of its own.
@triton.jit(do_not_specialize=["layer", "head_programs"])
def phase_kernel(
    w, b, u, layer, head_programs, PHASE: tl.constexpr, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    step = tl.load(b.scalars)
    if PHASE == 0:
        project_qkv(w, b, u, layer, step, head_programs, S, T, EARLY)
    elif PHASE == 1:
        attend(w, b, u, layer, step, S, T, EARLY)
    elif PHASE == 2:
        project_out(w, b, u, layer, step, S, T, EARLY)
    elif PHASE == 3:
        gate_up(w, b, u, layer, step, S, T, EARLY)
    elif PHASE == 4:
        down(w, b, u, layer, step, S, T, EARLY)
    elif PHASE == 5:
        choose(w, b, u, step, S, T, EARLY)
    else:
        wait(EARLY)
        write_report(b, u, step, head_programs, S, T)
        tl.store(b.scalars, step + 1)
