"""Kernels that do nothing but wait for each other: what a dependent phase costs at the least."""

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.columns import wait


def chain(programs: int, phases: int, *, early: bool) -> None:
    """Launch so many kernels, one behind the other; ``early``: each begins before the one before it has ended."""
    options = {"launch_pdl": True} if early else {}
    for _ in range(phases):
        _empty[(programs,)](early, **options)


@triton.jit
def _empty(EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    wait(EARLY)
