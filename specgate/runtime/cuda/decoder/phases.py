"""The phases of a decoder layer as device functions, but for attention: all programs share out a phase's tiles.

Each reads its first weights, which depend on nothing, then waits for the phase before, then computes. Of a sequence's
rows only those that count are computed, one after the other on the same weights, so that a row's numbers depend neither
on how many there are nor on how many programs. StackedWeights and pages are short numbers, all else is float32.

Arguments of all: ``w`` are ``StackedWeights``, ``b`` is a ``DraftBatch``, ``u`` is ``Workspace``.
"""

import triton
import triton.language as tl

from specgate.runtime.cuda.decoder.attention import attended
from specgate.runtime.cuda.decoder.choice import chosen_id
from specgate.runtime.cuda.decoder.columns import as_columns, columns, norm_scale, others, times, wait, weights


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
def project_qkv(w, b, u, layer, step, head_programs, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
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
    wait(EARLY)
    while tile * T.QKV < PAIRS:
        for sequence in range(tl.load(b.scalars + 1)):
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
def project_out(w, b, u, layer, step, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
    """Attention's output projection, added to the residual stream."""
    IN: tl.constexpr = S.HEADS * S.DIM
    ALL: tl.constexpr = triton.next_power_of_2(S.HEADS) * S.DIM
    at, is_at = columns(T.OUT, IN)
    stack = w.out + layer * (S.HIDDEN * IN)
    tile = tl.program_id(0)
    column = tile * T.OUT + tl.arange(0, T.OUT)
    own = weights(stack, column, column < S.HIDDEN, at, is_at, IN)
    wait(EARLY)
    while tile * T.OUT < S.HIDDEN:
        for sequence in range(tl.load(b.scalars + 1)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                x = as_columns(tl.reshape(attended(u, row, S, T), [ALL]), IN, ALL)
                _add(u, row, column, times(own, x), S)
        tile += tl.num_programs(0)
        column = tile * T.OUT + tl.arange(0, T.OUT)
        own = weights(stack, column, column < S.HIDDEN, at, is_at, IN)


@triton.jit
def _add(u, row, column, added, S: tl.constexpr):
    where, is_in = u.hidden + row * S.HIDDEN + column, column < S.HIDDEN
    tl.store(where, others(where, is_in) + added, mask=is_in)


@triton.jit
def gate_up(w, b, u, layer, step, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
    """Norm, both projections of the MLP, silu of one times the other."""
    at, is_at = columns(T.GATE, S.HIDDEN)
    stack = w.gate_up + layer * (2 * S.FFN * S.HIDDEN)
    gain = tl.load(w.norms + (2 * layer + 1) * S.HIDDEN + at, mask=is_at, other=0.0).to(tl.float32)
    tile = tl.program_id(0)
    column = tile * T.GATE + tl.arange(0, T.GATE)
    gate = weights(stack, column, column < S.FFN, at, is_at, S.HIDDEN)
    up = weights(stack, column + S.FFN, column < S.FFN, at, is_at, S.HIDDEN)
    wait(EARLY)
    while tile * T.GATE < S.FFN:
        for sequence in range(tl.load(b.scalars + 1)):
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


@triton.jit
def down(w, b, u, layer, step, S: tl.constexpr, T: tl.constexpr, EARLY: tl.constexpr):
    """The MLP's last projection, added to the residual stream."""
    at, is_at = columns(T.DOWN, S.FFN)
    stack = w.down + layer * (S.HIDDEN * S.FFN)
    tile = tl.program_id(0)
    column = tile * T.DOWN + tl.arange(0, T.DOWN)
    own = weights(stack, column, column < S.HIDDEN, at, is_at, S.FFN)
    wait(EARLY)
    while tile * T.DOWN < S.HIDDEN:
        for sequence in range(tl.load(b.scalars + 1)):
            for index in range(_first_index(b, sequence, step, S), S.WIDTH):
                row = sequence * S.WIDTH + index
                _add(u, row, column, times(own, others(u.gated + row * S.FFN + at, is_at)), S)
        tile += tl.num_programs(0)
        column = tile * T.DOWN + tl.arange(0, T.DOWN)
        own = weights(stack, column, column < S.HIDDEN, at, is_at, S.FFN)
