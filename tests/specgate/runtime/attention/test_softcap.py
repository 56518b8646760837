"""The soft-cap, written down one score at a time, and where it makes no difference."""

import math

import pytest
import torch
import torch.nn.functional as F

from specgate.runtime.attention.softcap import attend_with, softcapped_attention

HEADS, KV_HEADS, ROWS, LENGTH, DIM = 4, 2, 3, 7, 8


def random_rows(heads: int, rows: int, seed: int) -> torch.Tensor:
    return torch.randn(1, heads, rows, DIM, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = random_rows(HEADS, ROWS, 0), random_rows(KV_HEADS, LENGTH, 1), random_rows(KV_HEADS, LENGTH, 2)
MASK = torch.zeros(ROWS, LENGTH).masked_fill(torch.ones(ROWS, LENGTH).triu(LENGTH - ROWS + 1) > 0, -torch.inf)


def by_hand(softcap: float, scale: float, masked: bool) -> torch.Tensor:
    out = torch.empty(1, HEADS, ROWS, DIM)
    for head in range(HEADS):
        shared = head * KV_HEADS // HEADS
        for row in range(ROWS):
            seen = LENGTH - ROWS + row + 1 if masked else LENGTH
            scores = [float(QUERY[0, head, row] @ KEY[0, shared, column]) * scale for column in range(seen)]
            capped = torch.tensor([softcap * math.tanh(score / softcap) for score in scores])
            out[0, head, row] = capped.softmax(0) @ VALUE[0, shared, :seen]
    return out


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("softcap", [0.5, 3.0])
def test_scores_are_capped_before_the_mask(softcap: float, masked: bool) -> None:
    mask = MASK if masked else None
    out = softcapped_attention(QUERY, KEY, VALUE, softcap=softcap, attn_mask=mask, scale=0.7, enable_gqa=True)
    assert torch.allclose(out, by_hand(softcap, 0.7, masked), atol=1e-5)
    plain = F.scaled_dot_product_attention(QUERY, KEY, VALUE, attn_mask=mask, scale=0.7, enable_gqa=True)
    assert not torch.allclose(out, plain, atol=1e-2)


def test_a_cap_out_of_reach_is_none_and_the_scale_has_the_usual_default() -> None:
    arguments = {"attn_mask": MASK, "enable_gqa": True}
    far = attend_with(1e4)(QUERY, KEY, VALUE, **arguments)
    assert torch.allclose(far, attend_with(None)(QUERY, KEY, VALUE, **arguments), atol=1e-5)


def test_the_dtype_stays() -> None:
    rows = [x.bfloat16() for x in (QUERY, KEY, VALUE)]
    out = softcapped_attention(*rows, softcap=3.0, enable_gqa=True)
    assert out.dtype is torch.bfloat16
    assert torch.allclose(out.float(), by_hand(3.0, DIM**-0.5, masked=False), atol=0.05)


def test_without_a_cap_it_is_the_fused_function() -> None:
    assert attend_with(None) is F.scaled_dot_product_attention
