"""Tiles of a product with one row of activations: how they lie among threads, and sums along them. What the kernel
before wrote, and the wait for it.
"""

import triton
import triton.language as tl

_CHUNKS = tl.constexpr(0 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7) else 1)
"""Which axis of a tile the chunks of 256 columns are; the other one is its rows. Triton 3.6 shares out the first of the
two among warps and 3.7 the second, and rows are to be shared out: a sum along one then needs no other warp."""


@triton.jit
def along_rows(x):
    return x[None, :, None] if _CHUNKS == 0 else x[:, None, None]


@triton.jit
def _along_chunks(x):
    return x[:, None, None] if _CHUNKS == 0 else x[None, :, None]


@triton.jit
def columns(ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Return columns, [chunks, ROWS, 256] or [ROWS, chunks, 256], alike in all rows, and which of them there are."""
    CHUNKS: tl.constexpr = triton.next_power_of_2((SIZE + 255) // 256)
    at = _along_chunks(tl.arange(0, CHUNKS)) * 256 + tl.arange(0, 256)[None, None, :]
    at += along_rows(tl.arange(0, ROWS)) * 0
    return at, at < SIZE


@triton.jit
def as_columns(x, SIZE: tl.constexpr, HAS: tl.constexpr):
    """Return numbers [HAS], of which the first SIZE count, as the columns of a tile of one row."""
    CHUNKS: tl.constexpr = triton.next_power_of_2((SIZE + 255) // 256)
    if HAS < CHUNKS * 256:
        # Of tiny models: what is wanted of a chunk is not there.
        x = tl.gather(x, tl.minimum(tl.arange(0, CHUNKS * 256), HAS - 1), 0)
    return tl.reshape(x, [CHUNKS, 1, 256]) if _CHUNKS == 0 else tl.reshape(x, [1, CHUNKS, 256])


@triton.jit
def weights(stack, rows, is_row, at, is_at, SIZE: tl.constexpr):
    return tl.load(stack + along_rows(rows) * SIZE + at, mask=along_rows(is_row) & is_at, other=0.0)


@triton.jit
def wait(EARLY: tl.constexpr):
    """Return when the kernel before has ended: with ``EARLY`` this one begins sooner."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def others(where, mask):
    """Return what another program wrote: not from the cache of this multiprocessor."""
    return tl.load(where, mask=mask, other=0.0, cache_modifier=".cg")


@triton.jit
def times(own, x):
    """Return a tile's product with a row, float32 [ROWS]."""
    return tl.sum(tl.sum(own.to(tl.float32) * x, _CHUNKS), 1)


@triton.jit
def norm_scale(x, epsilon, SIZE: tl.constexpr):
    """Return what a norm multiplies by, as ``times``. It is applied after a product, which does not wait for it."""
    return tl.rsqrt(tl.sum(tl.sum(x * x, _CHUNKS), 1) / SIZE + epsilon)
