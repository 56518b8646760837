"""The project's noise in Triton: the numbers of ``runtime.noise``."""

import triton
import triton.language as tl


@triton.jit
def gumbel(key, ids):
    """Return ``noise.gumbel`` of these tokens, float64: SplitMix64 at counter ``ids``, 52 bits, inside (0, 1)."""
    z = key.to(tl.uint64) + (ids + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return -tl.log(-tl.log(((z >> 12).to(tl.float64) + 0.5) * 2.0**-52))
