"""Attention of all sequences in one call, over KV pages, in Triton: where torch's own kernel reads no pages.

The algorithm is FlashAttention's (Dao, 2023): keys in blocks, a running maximum and sum. The query heads that share a
key head are rows of one product, so that each key is read once. Where rows are few, a sequence's keys are shared out
among programs (Flash-Decoding, Dao et al., 2023), and the last of them to end puts the parts together, in order, so
that the same batch gives the same numbers every time. Among how many depends on the batch, so a row's last bits do.

float32 is multiplied as float32, not in the shortened format that a card prefers.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

MIN_KEYS_A_PART = 256
"""Fewer keys take less time than putting two parts together."""
MAX_PARTS = 16
MAX_BLOCKS_SPLIT = 4
"""With more blocks of rows there are programs enough without sharing out keys."""
BUSY_PROGRAMS = 1024
"""Keep a card busy: no keys are shared out to more. (What the parts leave takes 34 KB each at the most.)"""


class BlockSizes(NamedTuple):
    """How many rows a program has at the most, and how many keys it takes at a time."""

    max_rows: int
    keys: int


_HALF, _WIDE_HALF, _FLOAT32 = BlockSizes(64, 64), BlockSizes(64, 32), BlockSizes(16, 32)
"""Larger blocks would take more shared memory than cards have: of heads of 256 and more, and in float32, which is
multiplied without matrix units."""
_WIDE = 256


class TritonAttention:
    """Called as ``reference.varlen_attention``, in any floating dtype. Not thread-safe.

    Args:
        device: where it runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._arrivals = torch.zeros(BUSY_PROGRAMS, dtype=torch.int32, device=device)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: torch.Tensor,
        block_table: torch.Tensor,
        num_splits: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend per sequence over its pages, aligned at the end; shapes as in ``varlen_attention``.

        ``window_size`` is (tokens before a row that it sees or -1, 0): what comes after a row is never seen.
        """
        num_rows, heads, head_dim = query.shape
        kv_heads = key.shape[2]
        group = heads // kv_heads
        width = max(16, triton.next_power_of_2(head_dim))
        of = blocks_for(query.dtype, width)
        rows = min(of.max_rows, max(16, triton.next_power_of_2(max_q * group)))
        blocks = triton.cdiv(max_q * group, rows)
        programs = (blocks, kv_heads, len(block_table))
        parts = _num_parts(programs, max_k)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        shared = query.new_empty((parts, num_rows, heads, width + 4) if parts > 1 else (1,), dtype=torch.float32)
        attend[(blocks * parts, kv_heads, len(block_table))](
            query, key, value, out, cu_seq_q, seqused_k, block_table, shared, self._arrivals,
            head_dim**-0.5 if scale is None else scale, softcap or 0.0, window_size[0],
            query.stride(0), query.stride(1), key.stride(1), key.stride(2), block_table.stride(0), num_rows,
            GROUP=group, PAGE=key.shape[1], DIM=head_dim, WIDTH=width, ROWS=rows, KEYS=of.keys, PARTS=parts,
            PART_KEYS=MIN_KEYS_A_PART, WINDOWED=window_size[0] >= 0, CAPPED=softcap is not None, DEALT=False,
        )  # fmt: skip
        return out


def blocks_for(dtype: torch.dtype, width: int) -> BlockSizes:
    """Return the sizes for heads of ``width``, a power of two."""
    return _FLOAT32 if dtype is torch.float32 else _WIDE_HALF if width >= _WIDE else _HALF


def _num_parts(programs: tuple[int, int, int], max_k: int) -> int:
    blocks, kv_heads, num_sequences = programs
    if blocks > MAX_BLOCKS_SPLIT:
        return 1
    most = BUSY_PROGRAMS // (blocks * kv_heads * num_sequences)
    return max(1, min(MAX_PARTS, most, triton.cdiv(max_k, MIN_KEYS_A_PART)))


# Parts of a packing: where they begin depends on the number of sequences, and to compile anew takes seconds.
@triton.jit(
    do_not_specialize=["left", "columns", "num_rows"],
    do_not_specialize_on_alignment=["first_rows", "lengths", "table"],
)
def attend(
    query, keys, values, out, first_rows, lengths, table, shared, arrivals, scale, softcap, left,
    query_row, query_head, key_token, key_head, columns, num_rows,
    GROUP: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, PARTS: tl.constexpr, PART_KEYS: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    DEALT: tl.constexpr,
):  # fmt: skip
    """Attend with a block of one sequence's rows, those of one key head, to one part of the sequence's keys.

    A row here is (token, query head of the group), the head changing first. ``left`` is how many tokens a row sees
    before itself. ``shared`` is what ``_put_together`` takes. ``DEALT``: the parts get blocks of keys in turn, so that
    a row's bits depend on no length; else each has a run of them.
    """
    block, head, sequence = tl.program_id(0) // PARTS, tl.program_id(1), tl.program_id(2)
    part = tl.program_id(0) % PARTS
    first, length = tl.load(first_rows + sequence), tl.load(lengths + sequence)
    count = tl.load(first_rows + sequence + 1) - first
    if block * ROWS >= count * GROUP:
        return
    flat = block * ROWS + tl.arange(0, ROWS)
    row, is_row = flat // GROUP, flat // GROUP < count
    dims = tl.arange(0, WIDTH)
    is_dim = dims[None, :] < DIM
    token, of_head = (first + row).to(tl.int64), head * GROUP + flat % GROUP
    rows = tl.load(
        query + token[:, None] * query_row + of_head[:, None] * query_head + dims[None, :],
        mask=is_row[:, None] & is_dim, other=0.0,
    )  # fmt: skip

    start = length - count
    begin, end = 0, tl.minimum(length, start + (block * ROWS + ROWS - 1) // GROUP + 1)
    if WINDOWED:
        begin = tl.maximum(start + block * ROWS // GROUP - left, 0) // KEYS * KEYS
    live = PARTS
    if DEALT:
        begin = part * KEYS
        live = tl.minimum(tl.maximum(tl.cdiv(end, KEYS), 1), PARTS)
        if part >= live:
            return
    elif PARTS > 1:
        share = tl.maximum(tl.cdiv(tl.cdiv(length, PARTS), KEYS) * KEYS, PART_KEYS)
        begin, end = tl.maximum(begin, part * share), tl.minimum(end, part * share + share)
    greatest, total, summed = _attend_to_part(
        rows, start + row, keys + head * key_head, values + head * key_head, table + sequence * columns,
        begin, end, scale, softcap, left, key_token, PAGE, DIM, WIDTH, ROWS, KEYS, PARTS * KEYS if DEALT else KEYS,
        WINDOWED, CAPPED,
    )  # fmt: skip

    heads = tl.num_programs(1) * GROUP
    place = token * heads + of_head
    if PARTS > 1:
        arrival = (sequence * tl.num_programs(1) + head) * (tl.num_programs(0) // PARTS) + block
        own, stride = shared + place * (WIDTH + 4), num_rows.to(tl.int64) * heads * (WIDTH + 4)
        _keep(own + part * stride, greatest, total, summed, is_row, WIDTH)
        # Every thread's share must be in memory before one of them counts itself.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + arrival, 1, sem="acq_rel") != live - 1:
            return
        tl.debug_barrier()
        tl.store(arrivals + arrival, 0)
        total, summed = _put_together(own, stride, is_row, live, ROWS, WIDTH, PARTS)
    result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    where = out + place[:, None] * DIM + dims[None, :]
    tl.store(where, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_dim)


@triton.jit
def _attend_to_part(
    rows, place, keys, values, table, begin, end, scale, softcap, left, key_token,
    PAGE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STEP: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Return each row's greatest score [ROWS], sum of weights [ROWS] and weighted values [ROWS, WIDTH].

    Of the keys from ``begin`` to ``end``, ``KEYS`` in every ``STEP``, a row sees those up to its own ``place``.
    """
    dims = tl.arange(0, WIDTH)
    greatest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(begin, end, STEP):
        at = start + tl.arange(0, KEYS)
        is_key = at < end
        page = tl.load(table + at // PAGE, mask=is_key, other=0).to(tl.int64)
        offset = ((page * PAGE + at % PAGE) * key_token)[:, None] + dims[None, :]
        is_read = is_key[:, None] & (dims[None, :] < DIM)
        key, value = tl.load(keys + offset, mask=is_read, other=0.0), tl.load(values + offset, mask=is_read, other=0.0)
        score = tl.dot(rows, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            # tanh, which Triton lacks
            score = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * score / softcap)))
        is_seen = is_key[None, :] & (at[None, :] <= place[:, None])
        if WINDOWED:
            is_seen = is_seen & (at[None, :] >= place[:, None] - left)
        score = tl.where(is_seen, score, float("-inf"))
        now = tl.maximum(greatest, tl.max(score, 1))
        finite = tl.where(now == float("-inf"), 0.0, now)
        weight, kept = tl.exp(score - finite[:, None]), tl.exp(greatest - finite)
        total = total * kept + tl.sum(weight, 1)
        summed = summed * kept[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        greatest = now
    return greatest, total, summed


@triton.jit
def _keep(where, greatest, total, summed, is_row, WIDTH: tl.constexpr):
    """Store what ``_attend_to_part`` found for ``_put_together``: the values first, then two numbers."""
    tl.store(where[:, None] + tl.arange(0, WIDTH)[None, :], summed, mask=is_row[:, None])
    tl.store(where + WIDTH, greatest, mask=is_row)
    tl.store(where + WIDTH + 1, total, mask=is_row)


@triton.jit
def _put_together(first, stride, is_row, live, ROWS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Return sums over the first ``live`` parts, [ROWS] and [ROWS, WIDTH].

    Args:
        first: float32 pointers [ROWS] to what ``_keep`` left of the first part; the next is ``stride`` further.
    """
    greatest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDTH], tl.float32)
    # Unrolled, so that all parts are on their way at once.
    for part in tl.static_range(PARTS):
        its, is_read = first + part * stride, is_row & (part < live)
        # Not from the cache of this multiprocessor: others wrote it.
        its_greatest = tl.load(its + WIDTH, mask=is_read, other=float("-inf"), cache_modifier=".cg")
        its_total = tl.load(its + WIDTH + 1, mask=is_read, other=0.0, cache_modifier=".cg")
        values = its[:, None] + tl.arange(0, WIDTH)[None, :]
        its_sum = tl.load(values, mask=is_read[:, None], other=0.0, cache_modifier=".cg")
        now = tl.maximum(greatest, its_greatest)
        finite = tl.where(now == float("-inf"), 0.0, now)
        kept, added = tl.exp(greatest - finite), tl.exp(its_greatest - finite)
        total = total * kept + its_total * added
        summed = summed * kept[:, None] + its_sum * added[:, None]
        greatest = now
    return total, summed
