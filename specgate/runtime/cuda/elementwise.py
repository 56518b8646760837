"""Small steps of a decoder layer as one kernel each, in Triton: what a model writes as several.

Each computes in float32 and rounds once, where models round after every operation.
"""

import torch
import triton
import triton.language as tl

_COLUMNS = 1024
_MANY_COLUMNS = 4096
"""More of them in one program take more than Triton's usual 128 threads to stay in registers."""


def rotated(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys with rotary position embedding (Su et al., 2021), both halves of a head turned together.

    Args:
        query, key: [1, heads, rows, dim], key with fewer heads perhaps; the last dimension lies together.
        cos, sin: [1, rows, dim].
    """
    _, heads, num_rows, dim = query.shape
    kv_heads = key.shape[1]
    turned = [x.new_empty(1, num_rows, x.shape[1], dim).transpose(1, 2) for x in (query, key)]
    _rotate[(num_rows, heads + kv_heads)](
        query, key, cos, sin, *turned, query.stride(2), query.stride(1), key.stride(2), key.stride(1),
        cos.stride(1), sin.stride(1), HEADS=heads, KV_HEADS=kv_heads, HALF=dim // 2,
        WIDTH=triton.next_power_of_2(dim // 2),
    )  # fmt: skip
    return turned[0], turned[1]


def silu_times(both: torch.Tensor) -> torch.Tensor:
    """Return silu of the first half of the last dimension times the second half; ``both`` is contiguous."""
    width = both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], width)
    _silu_times[(both.numel() // (2 * width), triton.cdiv(width, _COLUMNS))](both, out, width, COLUMNS=_COLUMNS)
    return out


def add_rms_norm(
    hidden: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``hidden`` + ``added``, and the root-mean-square norm of that (Zhang and Sennrich, 2019).

    Args:
        hidden, added: [1, rows, width].
        weight: [width].
    """
    hidden, added = hidden.contiguous(), added.contiguous()
    summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    width = hidden.shape[-1]
    _add_rms_norm[(hidden.numel() // width,)](
        hidden, added, weight, summed, normed, epsilon, WIDTH=width, COLUMNS=triton.next_power_of_2(width),
        num_warps=8 if width > _MANY_COLUMNS else 4,
    )  # fmt: skip
    return summed, normed


def store(
    key: torch.Tensor, value: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write keys and values to their places.

    Args:
        key, value: [1, kv_heads, rows, dim]; the last dimension lies together.
        key_pages, value_pages: [pages, page_size, kv_heads, dim].
        slots: int64 [rows], page * page_size + offset.
    """
    _, kv_heads, num_rows, dim = key.shape
    _store[(num_rows, kv_heads)](
        key, value, key_pages, value_pages, slots, key.stride(2), key.stride(1), value.stride(2), value.stride(1),
        KV_HEADS=kv_heads, DIM=dim, WIDTH=triton.next_power_of_2(dim),
    )  # fmt: skip


@triton.jit
def _rotate(
    query, key, cos, sin, query_out, key_out, query_row, query_head, key_row, key_head, cos_row, sin_row,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, WIDTH)
    is_dim = at < HALF
    if head < HEADS:
        source = query + row * query_row + head * query_head
        target = query_out + (row * HEADS + head) * (2 * HALF)
    else:
        source = key + row * key_row + (head - HEADS) * key_head
        target = key_out + (row * KV_HEADS + head - HEADS) * (2 * HALF)
    first, second = _both_halves(source, at, is_dim, HALF)
    first_cos, second_cos = _both_halves(cos + row * cos_row, at, is_dim, HALF)
    first_sin, second_sin = _both_halves(sin + row * sin_row, at, is_dim, HALF)
    turned_first, turned_second = first * first_cos - second * first_sin, second * second_cos + first * second_sin
    tl.store(target + at, turned_first.to(query_out.dtype.element_ty), mask=is_dim)
    tl.store(target + HALF + at, turned_second.to(query_out.dtype.element_ty), mask=is_dim)


@triton.jit
def _both_halves(source, at, is_dim, HALF: tl.constexpr):
    first = tl.load(source + at, mask=is_dim, other=0.0)
    second = tl.load(source + HALF + at, mask=is_dim, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _silu_times(both, out, width, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    gate = tl.load(both + row * 2 * width + column, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _add_rms_norm(
    hidden, added, weight, summed, normed, epsilon, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    at = tl.arange(0, COLUMNS)
    is_column = at < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + at
    total = tl.load(hidden + place, mask=is_column, other=0.0).to(tl.float32)
    total += tl.load(added + place, mask=is_column, other=0.0).to(tl.float32)
    # Rounded as the model rounds it: what goes on is what was normed.
    rounded = total.to(summed.dtype.element_ty)
    tl.store(summed + place, rounded, mask=is_column)
    wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    factor = tl.load(weight + at, mask=is_column, other=0.0).to(tl.float32)
    tl.store(normed + place, (wide * scale * factor).to(normed.dtype.element_ty), mask=is_column)


@triton.jit
def _store(
    key, value, key_pages, value_pages, slots, key_row, key_head, value_row, value_head,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, WIDTH)
    is_dim = at < DIM
    place = (tl.load(slots + row) * KV_HEADS + head) * DIM + at
    one_key = tl.load(key + row * key_row + head * key_head + at, mask=is_dim)
    one_value = tl.load(value + row * value_row + head * value_head + at, mask=is_dim)
    tl.store(key_pages + place, one_key, mask=is_dim)
    tl.store(value_pages + place, one_value, mask=is_dim)
