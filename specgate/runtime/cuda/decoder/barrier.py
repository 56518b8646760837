"""How a phase waits for the one before it: by its own launch, by a launch's dependency, or by a barrier of programs.

The barrier counts arrivals and is never set back while programs look at it: each phase waits for a greater number. A
program that waits too long reports it, lets all programs pass, and goes on: a hang would take the card with it.
"""

import triton
import triton.language as tl

NONE, PDL, GRID = 0, 1, 2
"""``PDL``: programmatic dependent launch, where a kernel begins before the one before it has ended."""
_OPEN = tl.constexpr(1 << 30)
"""More arrivals than a launch can have."""


@triton.jit
def begin(SYNC: tl.constexpr):
    """Let the next kernel begin."""
    if SYNC == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(u, arrivals, T: tl.constexpr, SYNC: tl.constexpr):
    """Return when all programs have ended the phase before: ``arrivals`` of them since the launch."""
    if SYNC == 1:
        tl.extra.cuda.gdc_wait()
    if SYNC == 2:
        looks = 0
        while (tl.atomic_add(u.barrier, 0, sem="acquire", scope="gpu") < arrivals) & (looks < T.LOOKS):
            looks += 1
        if looks >= T.LOOKS:
            tl.store(u.report, 1.0)
            tl.atomic_max(u.barrier, _OPEN, sem="release", scope="gpu")
        tl.debug_barrier()


@triton.jit
def arrive(u, SYNC: tl.constexpr):
    if SYNC == 2:
        # What all threads wrote must be there before one of them says so.
        tl.debug_barrier()
        tl.atomic_add(u.barrier, 1, sem="release", scope="gpu")


@triton.jit
def leave(u):
    """After the last wait. The last program to leave sets the barrier back, as no program looks at it any more."""
    tl.debug_barrier()
    if tl.atomic_add(u.barrier + 1, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(u.barrier, 0)
        tl.store(u.barrier + 1, 0)
