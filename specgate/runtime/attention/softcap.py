"""Attention with a soft-cap on its scores, written out: torch's fused attention has no place for one.

Only models that ask for a soft-cap come here, Gemma 2 among them; it costs the full matrix of scores.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F


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
    """Attend with scores drawn into (-softcap, softcap) by tanh, before the mask.

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
