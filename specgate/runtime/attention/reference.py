"""Attention written out in torch: with a soft-cap, and as ``torch.nn.attention.varlen.varlen_attn`` computes it.

A fused kernel is compared with it before it serves, and tests on the CPU run the whole path with it.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F


def varlen_attention(
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
    """Attend per sequence over its pages, aligned at the end: a sequence's last row sees its last token.

    Args:
        query: [rows, heads, head_dim]; key and value [num_pages, page_size, kv_heads, head_dim].
        cu_seq_q: int32 [sequences + 1]; sequence i has the rows from ``cu_seq_q[i]`` to ``cu_seq_q[i + 1]``.
        cu_seq_k, max_q, max_k, num_splits: change how the fused kernel works, not what it gives.
        window_size: tokens that a row sees to its left and right, beside itself; -1 is all.
        seqused_k: int32 [sequences], tokens of each sequence.
        block_table: int32 [sequences, pages of a sequence].

    Returns:
        [rows, heads, head_dim] in the dtype of ``query``; zeros for rows that see nothing.
    """
    out = torch.zeros_like(query)
    firsts = cu_seq_q.tolist()
    for i, length in enumerate(seqused_k.tolist()):
        rows = slice(firsts[i], firsts[i + 1])
        seen = _visible(firsts[i + 1] - firsts[i], length, window_size).to(query.device)
        pages = block_table[i, : -(-length // key.shape[1])].long()
        keys, values = (x[pages].flatten(0, 1)[:length].transpose(0, 1)[None].float() for x in (key, value))
        of_rows = query[rows].transpose(0, 1)[None].float()
        hidden = ~seen & seen.any(1, keepdim=True)
        mask = torch.zeros(seen.shape, device=seen.device).masked_fill(hidden, -torch.inf)
        found = attend_with(softcap)(of_rows, keys, values, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        out[rows] = (found[0].transpose(0, 1) * seen.any(1)[:, None, None]).to(query.dtype)
    return out


def _visible(num_rows: int, length: int, window_size: tuple[int, int]) -> torch.Tensor:
    """Return which tokens each row sees, bool [num_rows, length]."""
    left, right = window_size
    row = torch.arange(length - num_rows, length)[:, None]
    column = torch.arange(length)[None]
    seen = torch.ones(num_rows, length, dtype=torch.bool)
    if left >= 0:
        seen &= column >= row - left
    if right >= 0:
        seen &= column <= row + right
    return seen


def attend_with(softcap: float | None) -> Callable[..., torch.Tensor]:
    """Return ``F.scaled_dot_product_attention``, or what takes the same arguments and caps the scores."""
    return F.scaled_dot_product_attention if softcap is None else partial(softcapped_attention, softcap=softcap)


def softcapped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    softcap: float,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attend with scores drawn into (-softcap, softcap) by tanh, before the mask: torch's attention has no soft-cap.

    Args:
        query: [1, heads, rows, head_dim]; key and value [1, kv_heads, length, head_dim].
        attn_mask: additive, broadcast to [rows, length]; None: every row sees everything.
        scale: of the raw scores; None: one over the root of head_dim.

    Returns:
        [1, heads, rows, head_dim] in the dtype of ``query``.
    """
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.tanh(query @ key.transpose(2, 3) * scale / softcap) * softcap
    if attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value
