"""Attention to pages as a phase, see ``phases``: the keys fall into parts, which the next phase puts together."""

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.columns import others, wait


@triton.jit
def _block(b, layer, sequence, kv_head, at, is_read, S: tl.constexpr):
    """Return keys and values of one head at these positions."""
    dims = tl.arange(0, S.DIM)
    page = tl.load(b.table + sequence * S.COLUMNS + at // S.PAGE, mask=is_read, other=0).to(tl.int64)
    stack = tl.zeros_like(page) + 2 * layer
    place = ((page * S.PAGE + at % S.PAGE) * S.KV_HEADS + kv_head) * S.DIM
    where = b.pages + (stack * b.page_stride + place)[:, None] + dims[None, :]
    return others(where, is_read[:, None]), others(where + b.page_stride, is_read[:, None])


@triton.jit
def attend(w, b, u, layer, step, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
    """Attend of a sequence's rows, all query heads of one key head, to one part of the keys.

    Block i of keys belongs to part i % PARTS, whatever the length: a row's numbers depend on its own prefix alone.
    """
    DIM: tl.constexpr = S.DIM
    GROUP: tl.constexpr = S.HEADS // S.KV_HEADS
    # What a matrix unit takes at the least.
    ROWS: tl.constexpr = triton.next_power_of_2(S.WIDTH * GROUP) if S.WIDTH * GROUP > 16 else 16
    dims, flat = tl.arange(0, S.DIM), tl.arange(0, ROWS)
    index, is_row = flat // GROUP, flat < S.WIDTH * GROUP
    num_tiles = tl.load(b.scalars + 1) * S.KV_HEADS * T.PARTS
    tile = tl.program_id(0)
    wait(EARLY)
    while tile < num_tiles:
        sequence, kv_head, part = tile // (T.PARTS * S.KV_HEADS), tile // T.PARTS % S.KV_HEADS, tile % T.PARTS
        length = tl.load(b.lengths + sequence) + step
        position = length - S.WIDTH + index
        row, head = sequence * S.WIDTH + index, kv_head * GROUP + flat % GROUP
        query = others(u.query + (row * S.HEADS + head)[:, None] * S.DIM + dims[None, :], is_row[:, None])
        query = query.to(b.pages.dtype.element_ty)
        greatest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        summed = tl.zeros([ROWS, DIM], tl.float32)
        start = part * T.KEYS
        while start < length:
            at = start + tl.arange(0, T.KEYS)
            key, value = _block(b, layer, sequence, kv_head, at, at < length, S)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * S.SCALE
            score = tl.where(at[None, :] <= position[:, None], score, float("-inf"))
            now = tl.maximum(greatest, tl.max(score, 1))
            finite = tl.where(now == float("-inf"), 0.0, now)
            weight, kept = tl.exp(score - finite[:, None]), tl.exp(greatest - finite)
            total = total * kept + tl.sum(weight, 1)
            summed = summed * kept[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            greatest = now
            start += T.PARTS * T.KEYS
        place = (part * (S.SEQUENCES * S.WIDTH) + row) * S.HEADS + head
        tl.store(u.partial + place[:, None] * S.DIM + dims[None, :], summed, mask=is_row[:, None])
        tl.store(u.greatest + place, greatest, mask=is_row)
        tl.store(u.total + place, total, mask=is_row)
        tile += tl.num_programs(0)


@triton.jit
def attended(u, row, S: tl.constexpr, T: tl.constexpr):
    """Return one row of attention's output, [heads up to a power of 2, dim], its parts put together in order."""
    DIM: tl.constexpr = S.DIM
    PARTS: tl.constexpr = T.PARTS
    HEADS: tl.constexpr = triton.next_power_of_2(S.HEADS)
    head, dims = tl.arange(0, HEADS), tl.arange(0, S.DIM)
    is_head = head < S.HEADS
    greatest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, DIM], tl.float32)
    for part in tl.static_range(PARTS):
        place = (part * (S.SEQUENCES * S.WIDTH) + row) * S.HEADS + head
        its = tl.load(u.greatest + place, mask=is_head, other=float("-inf"), cache_modifier=".cg")
        its_total = others(u.total + place, is_head)
        values = others(u.partial + place[:, None] * S.DIM + dims[None, :], is_head[:, None])
        now = tl.maximum(greatest, its)
        finite = tl.where(now == float("-inf"), 0.0, now)
        kept, added = tl.exp(greatest - finite), tl.exp(its - finite)
        total = total * kept + its_total * added
        out = out * kept[:, None] + values * added[:, None]
        greatest = now
    return out / tl.where(is_head, total, 1.0)[:, None]
