"""The phases of a decoder layer as device functions: all programs share out a phase's tiles.

Each reads its first weights, which depend on nothing, then waits for the phase before, then computes. Of a sequence's
rows only those that count are computed, one after the other on the same weights, so that a row's numbers depend neither
on how many there are nor on how many programs. Weights and pages are short numbers, all else is float32.

Arguments of all: ``w`` are ``Weights``, ``b`` is a ``Batch``, ``u`` is ``Work``.
"""

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.barrier import arrive, wait
from specgate.runtime.cuda.decoder.choice import chosen_id
from specgate.runtime.cuda.decoder.columns import as_columns, columns, norm_scale, others, times, weights


@triton.jit
def _first_index(b, sequence, step, S: tl.constexpr):
    """Return the first of a sequence's rows that counts in this step."""
    return S.WIDTH - tl.where(step == 0, tl.load(b.used + sequence), 1)


@triton.jit
def _pairs(tile, ROWS: tl.constexpr, S: tl.constexpr):
    """Return numbers of pairs that are turned together, their first rows, and whether there are such."""
    HALF: tl.constexpr = S.DIM // 2
    pair = tile * ROWS + tl.arange(0, ROWS)
    return pair, pair // HALF * S.DIM + pair % HALF, pair < (S.HEADS + 2 * S.KV_HEADS) * HALF


@triton.jit
def project_qkv(w, b, u, layer, step, head_programs, arrivals, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """Norm, queries, keys and values; turn the first two; write keys and values into their pages.

    The first layer reads embeddings: in a step that is not the first one, of what ``head_programs`` chose in the last.
    """
    HALF: tl.constexpr = S.DIM // 2
    PAIRS: tl.constexpr = (S.HEADS + 2 * S.KV_HEADS) * HALF
    at, is_at = columns(T.QKV, S.HIDDEN)
    stack = w.qkv + layer * (2 * PAIRS * S.HIDDEN)
    gain = tl.load(w.norms + layer * 2 * S.HIDDEN + at, mask=is_at, other=0.0).to(tl.float32)
    tile = tl.program_id(0)
    pair, first_row, is_pair = _pairs(tile, T.QKV, S)
    first = weights(stack, first_row, is_pair, at, is_at, S.HIDDEN)
    second = weights(stack, first_row + HALF, is_pair, at, is_at, S.HIDDEN)
    wait(u, arrivals, T, SYNC)
    while tile * T.QKV < PAIRS:
        for sequence in range(tl.load(b.scalars + 2)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                if layer == 0:
                    token = tl.load(b.token_ids + row)
                    if step > 0:
                        token = chosen_id(u, sequence, head_programs, S, T)
                    x = tl.load(w.embedding + token.to(tl.int64) * S.HIDDEN + at, mask=is_at, other=0.0).to(tl.float32)
                    if tile == 0:
                        tl.store(u.hidden + row * S.HIDDEN + at, x, mask=is_at)
                else:
                    x = others(u.hidden + row * S.HIDDEN + at, is_at)
                scale = norm_scale(x, S.EPSILON, S.HIDDEN)
                x *= gain
                one, other = times(first, x) * scale, times(second, x) * scale
                position = tl.load(b.lengths + sequence) + step - S.WIDTH + index
                _turn_and_keep(w, b, u, layer, sequence, row, position, pair, first_row, is_pair, one, other, S)
        tile += tl.num_programs(0)
        pair, first_row, is_pair = _pairs(tile, T.QKV, S)
        first = weights(stack, first_row, is_pair, at, is_at, S.HIDDEN)
        second = weights(stack, first_row + HALF, is_pair, at, is_at, S.HIDDEN)
    arrive(u, SYNC)


@triton.jit
def _turn_and_keep(
    w, b, u, layer, sequence, row, position, pair, first_row, is_pair, one, other, S: tl.constexpr
):  # fmt: skip
    """Turn pairs of queries and keys by their position; keep queries, and put keys and values into their page."""
    HALF: tl.constexpr = S.DIM // 2
    head = pair // HALF
    angle = w.angles + position * S.DIM + pair % HALF
    is_turned = head < S.HEADS + S.KV_HEADS
    cos = tl.load(angle, mask=is_turned, other=1.0)
    sin = tl.load(angle + HALF, mask=is_turned, other=0.0)
    one, other = one * cos - other * sin, other * cos + one * sin
    query = u.query + row * (S.HEADS * S.DIM) + first_row
    tl.store(query, one, mask=head < S.HEADS)
    tl.store(query + HALF, other, mask=head < S.HEADS)
    page = tl.load(b.table + sequence * S.COLUMNS + position // S.PAGE).to(tl.int64)
    of_value = head >= S.HEADS + S.KV_HEADS
    kv_head = head - S.HEADS - tl.where(of_value, S.KV_HEADS, 0)
    place = ((page * S.PAGE + position % S.PAGE) * S.KV_HEADS + kv_head) * S.DIM + pair % HALF
    where = b.pages + (2 * layer + of_value.to(tl.int32)).to(tl.int64) * b.page_stride + place
    is_kept = is_pair & (head >= S.HEADS)
    tl.store(where, one.to(b.pages.dtype.element_ty), mask=is_kept)
    tl.store(where + HALF, other.to(b.pages.dtype.element_ty), mask=is_kept)


@triton.jit
def _part_of(b, tile, step, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """Return a tile's sequence, key head and part, and the position up to which its keys were there before this step.

    In a chain of launches that begin early these may not be written yet: nothing is said to be there.
    """
    # Of a tile that there is not, any: nothing of it is read.
    sequence = tile // (T.PARTS * S.KV_HEADS) % S.SEQUENCES
    old = tl.load(b.lengths + sequence) + step - tl.where(step == 0, tl.load(b.used + sequence), 1)
    if SYNC == 1:
        old *= 0
    return sequence, tile // T.PARTS % S.KV_HEADS, tile % T.PARTS, old


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
def attend(w, b, u, layer, step, arrivals, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """Attend of a sequence's rows, all query heads of one key head, to one part of the keys.

    Block i of keys belongs to part i % PARTS, whatever the length: a row's numbers depend on its own prefix alone.
    """
    DIM: tl.constexpr = S.DIM
    GROUP: tl.constexpr = S.HEADS // S.KV_HEADS
    # What a matrix unit takes at the least.
    ROWS: tl.constexpr = triton.next_power_of_2(S.WIDTH * GROUP) if S.WIDTH * GROUP > 16 else 16
    dims, flat = tl.arange(0, S.DIM), tl.arange(0, ROWS)
    index, is_row = flat // GROUP, flat < S.WIDTH * GROUP
    num_tiles = tl.load(b.scalars + 2) * S.KV_HEADS * T.PARTS
    tile = tl.program_id(0)
    sequence, kv_head, part, old = _part_of(b, tile, step, S, T, SYNC)
    at = part * T.KEYS + tl.arange(0, T.KEYS)
    key, value = _block(b, layer, sequence, kv_head, at, (at < old) & (tile < num_tiles), S)
    wait(u, arrivals, T, SYNC)
    while tile < num_tiles:
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
            new_key, new_value = _block(b, layer, sequence, kv_head, at, (at >= old) & (at < length), S)
            key = tl.where((at < old)[:, None], key, new_key)
            value = tl.where((at < old)[:, None], value, new_value)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * S.SCALE
            score = tl.where(at[None, :] <= position[:, None], score, float("-inf"))
            now = tl.maximum(greatest, tl.max(score, 1))
            finite = tl.where(now == float("-inf"), 0.0, now)
            weight, kept = tl.exp(score - finite[:, None]), tl.exp(greatest - finite)
            total = total * kept + tl.sum(weight, 1)
            summed = summed * kept[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            greatest = now
            start += T.PARTS * T.KEYS
            at = start + tl.arange(0, T.KEYS)
            key, value = _block(b, layer, sequence, kv_head, at, at < old, S)
        place = (part * (S.SEQUENCES * S.WIDTH) + row) * S.HEADS + head
        tl.store(u.partial + place[:, None] * S.DIM + dims[None, :], summed, mask=is_row[:, None])
        tl.store(u.greatest + place, greatest, mask=is_row)
        tl.store(u.total + place, total, mask=is_row)
        tile += tl.num_programs(0)
        sequence, kv_head, part, old = _part_of(b, tile, step, S, T, SYNC)
        at = part * T.KEYS + tl.arange(0, T.KEYS)
        key, value = _block(b, layer, sequence, kv_head, at, (at < old) & (tile < num_tiles), S)
    arrive(u, SYNC)


@triton.jit
def _attended(u, row, S: tl.constexpr, T: tl.constexpr):
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


@triton.jit
def project_out(w, b, u, layer, step, arrivals, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """Attention's output projection, added to the residual stream."""
    IN: tl.constexpr = S.HEADS * S.DIM
    ALL: tl.constexpr = triton.next_power_of_2(S.HEADS) * S.DIM
    at, is_at = columns(T.OUT, IN)
    stack = w.out + layer * (S.HIDDEN * IN)
    tile = tl.program_id(0)
    column = tile * T.OUT + tl.arange(0, T.OUT)
    own = weights(stack, column, column < S.HIDDEN, at, is_at, IN)
    wait(u, arrivals, T, SYNC)
    while tile * T.OUT < S.HIDDEN:
        for sequence in range(tl.load(b.scalars + 2)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                x = as_columns(tl.reshape(_attended(u, row, S, T), [ALL]), IN, ALL)
                _add(u, row, column, times(own, x), S)
        tile += tl.num_programs(0)
        column = tile * T.OUT + tl.arange(0, T.OUT)
        own = weights(stack, column, column < S.HIDDEN, at, is_at, IN)
    arrive(u, SYNC)


@triton.jit
def _add(u, row, column, added, S: tl.constexpr):
    where, is_in = u.hidden + row * S.HIDDEN + column, column < S.HIDDEN
    tl.store(where, others(where, is_in) + added, mask=is_in)


@triton.jit
def gate_up(w, b, u, layer, step, arrivals, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """Norm, both projections of the MLP, silu of one times the other."""
    at, is_at = columns(T.GATE, S.HIDDEN)
    stack = w.gate_up + layer * (2 * S.FFN * S.HIDDEN)
    gain = tl.load(w.norms + (2 * layer + 1) * S.HIDDEN + at, mask=is_at, other=0.0).to(tl.float32)
    tile = tl.program_id(0)
    column = tile * T.GATE + tl.arange(0, T.GATE)
    gate = weights(stack, column, column < S.FFN, at, is_at, S.HIDDEN)
    up = weights(stack, column + S.FFN, column < S.FFN, at, is_at, S.HIDDEN)
    wait(u, arrivals, T, SYNC)
    while tile * T.GATE < S.FFN:
        for sequence in range(tl.load(b.scalars + 2)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                x = others(u.hidden + row * S.HIDDEN + at, is_at)
                scale = norm_scale(x, S.EPSILON, S.HIDDEN)
                x *= gain
                opened = times(gate, x) * scale
                out = opened / (1.0 + tl.exp(-opened)) * (times(up, x) * scale)
                tl.store(u.gated + row * S.FFN + column, out, mask=column < S.FFN)
        tile += tl.num_programs(0)
        column = tile * T.GATE + tl.arange(0, T.GATE)
        gate = weights(stack, column, column < S.FFN, at, is_at, S.HIDDEN)
        up = weights(stack, column + S.FFN, column < S.FFN, at, is_at, S.HIDDEN)
    arrive(u, SYNC)


@triton.jit
def down(w, b, u, layer, step, arrivals, S: tl.constexpr, T: tl.constexpr, SYNC: tl.constexpr):
    """The MLP's last projection, added to the residual stream."""
    at, is_at = columns(T.DOWN, S.FFN)
    stack = w.down + layer * (S.HIDDEN * S.FFN)
    tile = tl.program_id(0)
    column = tile * T.DOWN + tl.arange(0, T.DOWN)
    own = weights(stack, column, column < S.HIDDEN, at, is_at, S.FFN)
    wait(u, arrivals, T, SYNC)
    while tile * T.DOWN < S.HIDDEN:
        for sequence in range(tl.load(b.scalars + 2)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                _add(u, row, column, times(own, others(u.gated + row * S.FFN + at, is_at)), S)
        tile += tl.num_programs(0)
        column = tile * T.DOWN + tl.arange(0, T.DOWN)
        own = weights(stack, column, column < S.HIDDEN, at, is_at, S.FFN)
    arrive(u, SYNC)
