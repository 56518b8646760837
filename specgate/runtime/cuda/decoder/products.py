"""The products of a decoder layer for up to 16 rows, one Triton kernel each, with what surrounds them.

A forward of 1 row and of 16 runs the same instructions on 16 rows of a matrix unit, so a row's bits do not depend on
how many come along. How many there are is read on the device: one recorded graph serves them all.

The residual stream is float32. Who adds to it also leaves it times the weight of the norm that follows, and the sums of
its squares, part by part: products read that as it is, and norm what they give.

No kernel starts before the one in front of it has ended: on an H200 early starts that ask for weights made a forward
slower.
"""

import triton
import triton.language as tl

from specgate.runtime.cuda.graphs import FEW_ROWS

_ROWS = tl.constexpr(FEW_ROWS)
_WARPS = tl.constexpr(4)
"""Triton's default."""
# Parts of a packing: where they begin depends on the batch, and to compile anew takes seconds.
_PACKED = ["num_rows", "token_ids", "positions", "slots"]


@triton.jit
def _multiplied(
    ready, squares, weight, own, is_own, num_rows, epsilon, IN: tl.constexpr, PAIR: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return ready [16, IN] times the rows ``own`` of a weight, normed, float32 [16, BLOCK] twice, and which rows are.

    Args:
        squares: sums of squares [16, PARTS] of the rows that ``ready`` was made of.
        PAIR: the second result is of the rows so much further; 0: there is none.
        num_rows: where on the device it says how many rows count.
    """
    rows = tl.arange(0, _ROWS)
    is_row = rows < tl.load(num_rows)
    # Added up behind the product, which so waits for no sum.
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    is_part = is_row[:, None] & (part < PARTS)[None, :]
    sums = tl.load(squares + rows[:, None] * PARTS + part[None, :], mask=is_part, other=0.0)
    one = tl.zeros([_ROWS, BLOCK], tl.float32)
    other = tl.zeros([_ROWS, BLOCK], tl.float32)
    first = weight + own.to(tl.int64)[None, :] * IN
    for start in tl.range(0, IN, COLUMNS, num_stages=STAGES):
        at = start + tl.arange(0, COLUMNS)
        is_at = at < IN
        is_read = is_at[:, None] & is_own[None, :]
        these = tl.load(ready + rows[:, None] * IN + at[None, :], mask=is_row[:, None] & is_at[None, :], other=0.0)
        its = tl.load(first + at[:, None], mask=is_read, other=0.0)
        one = tl.dot(these, its, one, input_precision="ieee")
        if PAIR > 0:
            its = tl.load(first + PAIR * IN + at[:, None], mask=is_read, other=0.0)
            other = tl.dot(these, its, other, input_precision="ieee")
    scale = tl.rsqrt(tl.sum(sums, 1) / IN + epsilon)[:, None]
    return one * scale, other * scale, is_row[:, None]


@triton.jit
def _leave(x, hidden, ready, squares, gain, own, is_in, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Store columns of the residual stream, 0 where there are none, and what the norm that follows needs of them."""
    rows = tl.arange(0, _ROWS)
    where = rows[:, None] * WIDTH + own[None, :]
    tl.store(hidden + where, x, mask=is_in)
    its = x * tl.load(gain + own, mask=own < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(ready + where, its.to(ready.dtype.element_ty), mask=is_in)
    tl.store(squares + rows * PARTS + tl.program_id(0), tl.sum(x * x, 1))


@triton.jit(do_not_specialize_on_alignment=_PACKED)
def embedded(
    token_ids, embedding, gain, hidden, ready, squares, num_rows, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Begin the residual stream."""
    rows, own = tl.arange(0, _ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = rows < tl.load(num_rows)
    token = tl.load(token_ids + rows, mask=is_row, other=0)
    is_in = is_row[:, None] & (own < WIDTH)[None, :]
    x = tl.load(embedding + token[:, None] * WIDTH + own[None, :], mask=is_in, other=0.0).to(tl.float32)
    _leave(x, hidden, ready, squares, gain, own, is_in, WIDTH, PARTS)


@triton.jit(do_not_specialize_on_alignment=_PACKED)
def added(
    x, weight, gain, hidden, ready, squares, num_rows, IN: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add a product to the residual stream [16, WIDTH].

    It has few outputs, and so few programs: each warp multiplies a part of the columns, or all would wait for a sum.
    """
    rows, own = tl.arange(0, _ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_own = rows < tl.load(num_rows), own < WIDTH
    warps, inside = tl.arange(0, _WARPS)[:, None], tl.arange(0, COLUMNS // _WARPS)[None, :]
    sums = tl.zeros([_WARPS, _ROWS, BLOCK], tl.float32)
    first = weight + own.to(tl.int64)[None, None, :] * IN
    for start in tl.range(0, IN, COLUMNS, num_stages=STAGES):
        at = start + warps * (COLUMNS // _WARPS) + inside
        is_at = at < IN
        where = x + rows[None, :, None] * IN + at[:, None, :]
        these = tl.load(where, mask=is_row[None, :, None] & is_at[:, None, :], other=0.0)
        its = tl.load(first + at[:, :, None], mask=is_at[:, :, None] & is_own[None, None, :], other=0.0)
        sums = tl.dot(these, its, sums, input_precision="ieee")
    is_in = is_row[:, None] & is_own[None, :]
    result = tl.sum(sums, 0) + tl.load(hidden + rows[:, None] * WIDTH + own[None, :], mask=is_in, other=0.0)
    _leave(result, hidden, ready, squares, gain, own, is_in, WIDTH, PARTS)


@triton.jit(do_not_specialize_on_alignment=_PACKED)
def gated(
    ready, squares, weight, out, num_rows, epsilon, IN: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write silu of the first half of the outputs times the second, [16, OUT]."""
    rows, own = tl.arange(0, _ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_own = own < OUT
    gate, up, is_row = _multiplied(
        ready, squares, weight, own, is_own, num_rows, epsilon, IN, OUT, PARTS, BLOCK, COLUMNS, STAGES
    )  # fmt: skip
    result = gate / (1.0 + tl.exp(-gate)) * up
    where = out + rows[:, None] * OUT + own[None, :]
    tl.store(where, result.to(out.dtype.element_ty), mask=is_row & is_own[None, :])


@triton.jit(do_not_specialize_on_alignment=_PACKED)
def plain(
    ready, squares, weight, out, num_rows, epsilon, IN: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the product, [16, OUT]."""
    rows, own = tl.arange(0, _ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_own = own < OUT
    one, _, is_row = _multiplied(
        ready, squares, weight, own, is_own, num_rows, epsilon, IN, 0, PARTS, BLOCK, COLUMNS, STAGES
    )  # fmt: skip
    where = out + rows[:, None].to(tl.int64) * OUT + own[None, :]
    tl.store(where, one.to(out.dtype.element_ty), mask=is_row & is_own[None, :])


@triton.jit(do_not_specialize_on_alignment=_PACKED)
def rotated(
    ready, squares, weight, query_gain, key_gain, cosines, sines, positions, slots, query, keys, values, num_rows,
    epsilon, IN: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PARTS: tl.constexpr,
    NORMED: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Turn queries [16, HEADS * DIM] and keys; write keys and values into their pages.

    Outputs d and d + DIM / 2 of a head belong together. ``NORMED``: queries and keys are normed, head by head; a
    program has a whole one then.
    """
    HALF: tl.constexpr = DIM // 2
    rows, pair = tl.arange(0, _ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head, inside = pair // HALF, pair % HALF
    own, is_own = head * DIM + inside, head < HEADS + 2 * KV_HEADS
    one, other, is_row = _multiplied(
        ready, squares, weight, own, is_own, num_rows, epsilon, IN, HALF, PARTS, BLOCK, COLUMNS, STAGES
    )  # fmt: skip
    is_query, of_value = head < HEADS, head >= HEADS + KV_HEADS
    if NORMED:
        scale = tl.rsqrt(tl.sum(one * one + other * other, 1) / DIM + epsilon)[:, None]
        its = tl.where(is_query, query_gain + inside, key_gain + inside)
        first, second = tl.load(its).to(tl.float32), tl.load(its + HALF).to(tl.float32)
        one = tl.where(of_value[None, :], one, one * scale * first[None, :])
        other = tl.where(of_value[None, :], other, other * scale * second[None, :])
    place = tl.load(positions + rows[:, None], mask=is_row, other=0) * HALF + inside[None, :]
    is_turned = is_row & (head < HEADS + KV_HEADS)[None, :]
    cos, sin = tl.load(cosines + place, mask=is_turned, other=1.0), tl.load(sines + place, mask=is_turned, other=0.0)
    one, other = one * cos - other * sin, other * cos + one * sin
    _store_pair(query + rows[:, None] * (HEADS * DIM) + own[None, :], one, other, is_row & is_query[None, :], HALF)
    kv_head = head - tl.where(of_value, HEADS + KV_HEADS, HEADS)
    slot = tl.load(slots + rows[:, None], mask=is_row, other=0) * (KV_HEADS * DIM)
    slot += (kv_head * DIM + inside)[None, :]
    _store_pair(keys + slot, one, other, is_turned & (head >= HEADS)[None, :], HALF)
    _store_pair(values + slot, one, other, is_row & (of_value & is_own)[None, :], HALF)


@triton.jit
def _store_pair(where, one, other, is_in, HALF: tl.constexpr):
    tl.store(where, one.to(where.dtype.element_ty), mask=is_in)
    tl.store(where + HALF, other.to(where.dtype.element_ty), mask=is_in)
